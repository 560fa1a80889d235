"""The two kinds of method.

An **edit** changes single entries of a row; it may move the argmax, so greedy rows get it too. It is data (kernels/program.py): a
method makes it from its slot, every backend applies it. A **refinement** maps candidates to candidates; greedy rows skip it. Its
`apply` is the specification in torch; its `stage` is the same for the kernels, which are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.kernels import program
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates, Context

if TYPE_CHECKING:
    from tailrace.sampling.slot import Slot


def never(params: SamplingParams) -> bool:
    """Most edits stay the same as long as the request does."""
    return False


@dataclass(frozen=True, slots=True)
class EditMethod:
    """wanted: does this request need it at all. edits(slot): what it does at the slot's next position. moves: whether that
    changes from token to token. recalls: whether it needs the sequence's history. dense: whether no kernel has it
    (kernels.program.Dense)."""

    wanted: Callable[[SamplingParams], bool]
    edits: Callable[[Slot], Sequence[program.Edit]]
    moves: Callable[[SamplingParams], bool] = never
    recalls: Callable[[SamplingParams], bool] = never
    dense: Callable[[SamplingParams], bool] = never


@dataclass(frozen=True, slots=True)
class Refinement:
    """wanted: does this request need it at all. apply(candidates, context) → candidates, at least one. stage(params): the same for
    the kernels. begin(params): the state it carries from token to token, which `Programs.write_state` knows; learn(slot, logprob): so
    likely was the drawn token among the candidates, nats; csrc/stateful.cpp does the same."""

    wanted: Callable[[SamplingParams], bool]
    apply: Callable[[Candidates, Context], Candidates]
    stage: Callable[[SamplingParams], program.Stage]
    begin: Callable[[SamplingParams], dict[str, float]] | None = None
    learn: Callable[[Slot, float], None] | None = None
