"""One request in the sampler, and the two kinds of method that work for it.

A file of sampling/methods is one method. Its METHOD is one of the two kinds, and request/method_order.py has its place.

A **logits edit** (transformers: logits processor) changes single entries of a row. An edit may move the argmax, so
greedy rows get it too. It is data (kernels/program.py): a method makes the data from its slot, and every backend
applies them. A **refinement** (transformers: logits warper) maps candidates to candidates. Greedy rows skip it. Its
`apply` is the specification in torch. Its `stage` is the same for the kernels, which are compared with `apply`.

The fields of SamplingParams that switch a method on name it in their declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import torch

from tailrace.kernels.program import MAX_EDITS, Dense, Edit, Program, Stage
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.history import History
from tailrace.sampling.sequence_state import SequenceState

T = TypeVar("T")
Wanted = Callable[[SamplingParams], bool]
PendingUpdate = tuple[int, float | None]  # a token, and the log-probability to learn from after its commit


def always(params: SamplingParams) -> bool:
    """Return True: whenever the method is wanted."""
    return True


def never(params: SamplingParams) -> bool:
    """Return False: most edits stay the same as long as the request does."""
    return False


@dataclass(frozen=True, slots=True)
class LogitsEdit:
    """A method that edits a row's logits.

    - edits(slot): the method's edits at the slot's next position.
    - moves: whether the edits change from token to token.
    - recalls: whether the method needs the sequence's history.
    - dense: whether no kernel has the method (kernels.program.Dense).
    - wanted: whether a request needs the method. None: if one of the fields that switch it on is not neutral.
    - name: the name in method_order.py, set by pipeline.py.
    """

    edits: Callable[[Slot], Sequence[Edit]]
    _: KW_ONLY
    wanted: Wanted | None = None
    moves: Wanted = never
    recalls: Wanted = never
    dense: Wanted = never
    name: str = ""


@dataclass(frozen=True, slots=True)
class Refinement:
    """A method that maps candidates to candidates.

    - apply(candidates, context): the candidates after the method, at least one.
    - stage(params): the same for the kernels. None: no kernel has the method, and only rows that need it fall back to
      `apply`.
    - wanted, name: as in `LogitsEdit`.
    - begin(params): the first value of the state that the method carries from token to token. `Programs.write_state`
      knows this state.
    - learn(slot, logprob): updates the state from the drawn token's log-probability among the candidates (nats).
      csrc/sample/stateful.cpp does the same.
    """

    apply: Callable[[Candidates, Context], Candidates]
    stage: Callable[[SamplingParams], Stage] | None
    _: KW_ONLY
    wanted: Wanted | None = None
    begin: Callable[[SamplingParams], dict[str, float]] | None = None
    learn: Callable[[Slot, float], None] | None = None
    name: str = ""


@dataclass(slots=True)
class Slot:
    """A request in the sampler: its parameters, its methods and its tokens.

    - edit_methods, refinements: the methods that the request needs, in order.
    - program: the part of the request that never changes.
    - next_edits: the edits at the next position, if the kernels have them.
    - derived: data made once from the parameters.
    - updates: for each drawn token that is not committed yet, in order, the log-probability that the methods learn from
      if the token stays. None: the state stays.
    - basis: the candidates whose probabilities the state follows, for the last processed row. A refinement with a state
      sets it.
    - took_s: processor time of the last draw, if the draw may be costly.
    - turns: an edit method has other edits after every token.
    """

    params: SamplingParams
    key: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    num_prompt: int
    num_output: int
    history: History | None
    edit_methods: tuple[LogitsEdit, ...]
    refinements: tuple[Refinement, ...]
    sequence_state: SequenceState
    program: Program
    derived: dict[str, Any] = field(default_factory=dict)
    updates: list[PendingUpdate] = field(default_factory=list)
    next_edits: list[Edit] = field(init=False, default_factory=list)
    basis: Candidates | None = field(init=False, default=None)
    took_s: float = field(init=False, default=0.0)
    turns: bool = field(init=False)

    def __post_init__(self) -> None:
        self.use_edits(self.edit_methods)

    def use_edits(self, methods: tuple[LogitsEdit, ...]) -> None:
        """Replace the slot's edit methods."""
        self.edit_methods = methods
        self.turns = any(method.moves(self.params) for method in methods)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return `make()` the first time, and the same object afterwards."""
        if name not in self.derived:
            self.derived[name] = make()
        return self.derived[name]

    @property
    def state(self) -> dict[str, float]:
        """The state that the refinements carry from token to token."""
        return self.sequence_state.state

    @property
    def banned(self) -> dict[int, set[int]]:
        """Output position → ids that may not be drawn there."""
        return self.sequence_state.banned

    @property
    def forced(self) -> int | None:
        """The token that the next position must have."""
        return self.sequence_state.forced.get(self.num_output)

    @property
    def reported(self) -> bool:
        """Whether the request wants logprobs or entropies."""
        return self.params.logprobs is not None or self.params.report_entropy

    @property
    def moves(self) -> bool:
        """Whether the edits change from token to token."""
        return self.turns or bool(self.sequence_state.forced)

    @property
    def moves_with_drafts(self) -> bool:
        """Whether a draft changes more than the counts of the history. Then the kernels need a program per row
        (backends/draft_programs.py)."""
        return not self.program.unsupported and (self.moves or self.params.penalty_last_n >= 0)

    def kernel_edits(self) -> list[Edit]:
        """Return the edits at the next position that the kernels have."""
        made: list[Edit] = []
        for method in self.edit_methods:
            made += [edit for edit in method.edits(self) if not isinstance(edit, Dense)]
        if len(made) > MAX_EDITS:
            raise AssertionError(f"{len(made)} edits in one program")
        return made

    def extend(self, tokens: Sequence[int]) -> None:
        """Append output tokens."""
        self.num_output += len(tokens)
        if self.history is not None:
            for token in tokens:
                self.history.append(token)
        if self.updates:
            self._update_state(tokens)

    def _update_state(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self.updates:
                break
            drawn, logprob = self.updates.pop(0)
            if drawn != token:  # another source set this token, so later drawn tokens do not follow
                self.updates.clear()
            elif logprob is not None:
                for method in self.refinements:
                    if method.learn is not None:
                        method.learn(self, logprob)

    def update_of(self, token: int) -> PendingUpdate:
        """Return what the methods learn if this token stays. They learn nothing from a forced token."""
        if self.basis is None or self.forced is not None:
            return token, None
        at = int(torch.searchsorted(self.basis.ids, token))
        kept = at < self.basis.ids.numel() and int(self.basis.ids[at]) == token
        return token, float(self.basis.logits.double().log_softmax(0)[at]) if kept else None

    def pop(self) -> None:
        """Remove the last output token. The caller restores the methods' state."""
        self.num_output -= 1
        if self.history is not None:
            self.history.pop()


@dataclass(slots=True)
class Context:
    """The other inputs of a refinement besides the candidates: the slot, the position of the token, the edited row."""

    slot: Slot
    position: int
    row: torch.Tensor

    @property
    def sigma(self) -> float:
        """Population standard deviation of the row's finite logits."""
        return float(self.row[self.row.isfinite()].double().std(correction=0))


def begin_state(
    params: SamplingParams, refinements: Sequence[Refinement], num_output: int, state: SequenceState | None
) -> SequenceState:
    """Add the request's forced tokens from `num_output` on, and the methods' first values that the state lacks. Return
    the state, or a new one if it is None."""
    state = SequenceState() if state is None else state
    for position in range(num_output, len(params.forced_token_ids)):
        state.forced.setdefault(position, params.forced_token_ids[position])
    for method in refinements:
        if method.begin is not None:
            state.state.update(method.begin(params) | state.state)
    return state
