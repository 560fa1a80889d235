"""The two kinds of method. A file of this folder is one method: its METHOD is one of these, and sampling/pipeline.py
has its place.

A **logits edit** (transformers: logits processor) changes single entries of a row; it may move the argmax, so greedy
rows get it too. It is data (kernels/program.py): a method makes it from its slot, every backend applies it. A
**refinement** (transformers: logits warper) maps candidates to candidates; greedy rows skip it. Its `apply` is the
specification in torch; its `stage` is the same for the kernels, which are compared with it.

The fields of SamplingParams that switch a method on name it in their declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from tailrace.kernels import program
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates, Context

if TYPE_CHECKING:
    from tailrace.sampling.slot import Slot

Wanted = Callable[[SamplingParams], bool]


def always(params: SamplingParams) -> bool:
    """Whenever the method is wanted."""
    return True


def never(params: SamplingParams) -> bool:
    """Most edits stay the same as long as the request does."""
    return False


@dataclass(frozen=True, slots=True)
class LogitsEdit:
    """edits(slot): what it does at the slot's next position. moves: whether that changes from token to token. recalls:
    whether it needs the sequence's history. dense: whether no kernel has it (kernels.program.Dense). wanted: whether a
    request needs it; None: where one of the fields that switch it on is not neutral."""

    edits: Callable[[Slot], Sequence[program.Edit]]
    _: KW_ONLY
    wanted: Wanted | None = None
    moves: Wanted = never
    recalls: Wanted = never
    dense: Wanted = never


@dataclass(frozen=True, slots=True)
class Refinement:
    """apply(candidates, context) → candidates, at least one. stage(params): the same for the kernels; None: no kernel
    has it, and rows that ask for it fall back to `apply`, alone. wanted: as of an edit. begin(params): the state it
    carries from token to token, which `Programs.write_state` knows; learn(slot, logprob): updates the state from the
    drawn token's log-probability among the candidates (nats); csrc/stateful.cpp does the same."""

    apply: Callable[[Candidates, Context], Candidates]
    stage: Callable[[SamplingParams], program.Stage] | None
    _: KW_ONLY
    wanted: Wanted | None = None
    begin: Callable[[SamplingParams], dict[str, float]] | None = None
    learn: Callable[[Slot, float], None] | None = None
