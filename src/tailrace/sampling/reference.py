"""The reference sampler: one request at a time in torch. It is the specification for the kernels.

Rows that need more than the kernels have fall back to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tailrace import kernels
from tailrace.base.logprobs import TokenLogprobs
from tailrace.kernels.constants import DRAW_STREAM
from tailrace.kernels.program import Add, Ban, Dense, Edit, Lift, Mask, Penalty
from tailrace.kernels.status import MESSAGES, OK, PROCESSOR
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.logprobs import make_token_logprobs
from tailrace.sampling.slot import Context, Slot

log = logging.getLogger(__name__)


class BadRowError(Exception):
    """The edits left a row without a distribution. `status` is one of kernels/status.py."""

    def __init__(self, status: int) -> None:
        super().__init__(MESSAGES[status])
        self.status = status


def apply_mask(row: torch.Tensor, edit: Mask) -> None:
    bits = torch.from_numpy(edit.words.view("uint8").copy())
    allowed = (bits[:, None] >> torch.arange(8) & 1).bool().flatten()[: row.numel()]
    row[~allowed] = float("-inf")


def apply_ban(row: torch.Tensor, edit: Ban) -> None:
    row[torch.from_numpy(edit.ids.astype("int64"))] = float("-inf")


def apply_add(row: torch.Tensor, edit: Add) -> None:
    row[torch.from_numpy(edit.ids.astype("int64"))] += torch.from_numpy(edit.values)


def apply_penalty(row: torch.Tensor, edit: Penalty) -> None:
    ids, repeated, counted = (torch.tensor(part, dtype=torch.int64) for part in edit.counts.lists())
    values, r = row[ids], edit.repetition
    if r != 1.0:
        values = torch.where(repeated > 0, torch.where(values > 0, values / r, values * r), values)
    lowered = values - edit.frequency * counted.float() - edit.presence
    row[ids] = torch.where(counted > 0, lowered, values)


def apply_lift(row: torch.Tensor, edit: Lift) -> None:
    ids = torch.from_numpy(edit.ids.astype("int64"))
    row[ids] = torch.where(row[ids].isfinite(), row[ids] + row[ids].abs() * edit.factor, row[ids])


def apply_dense(row: torch.Tensor, edit: Dense) -> None:
    shape = row.shape
    try:
        result = edit.apply(row)
        if result is not None and result is not row:
            if not isinstance(result, torch.Tensor) or (result.shape, result.dtype, result.device) != (
                shape,
                row.dtype,
                row.device,
            ):
                wanted = f"{row.dtype} {tuple(shape)} on the CPU"
                raise TypeError(f"a processor must return nothing, or another {wanted}, got {describe_result(result)}")
            row.copy_(result.detach())
        if row.shape != shape:
            raise TypeError(f"a processor must leave the row's shape {tuple(shape)} as it is, got {tuple(row.shape)}")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a processor's error fails only this request
        log.exception("a custom processor failed")
        raise BadRowError(PROCESSOR) from error


def describe_result(result: object) -> str:
    """Describe a processor's result for the log."""
    if isinstance(result, torch.Tensor):
        return f"{result.dtype} {tuple(result.shape)} on {result.device}"
    return type(result).__name__


APPLY: dict[type[Edit], Callable[[torch.Tensor, Edit], None]] = {
    Mask: apply_mask,
    Ban: apply_ban,
    Add: apply_add,
    Penalty: apply_penalty,
    Lift: apply_lift,
    Dense: apply_dense,
}  # type: ignore[dict-item]


class Step(NamedTuple):
    """One method's work on a row.

    - method: name in method_order.py, "grammar" for the mask, "" after the last edit.
    - row: float32 [V] after the edits so far. The next edit changes it in place.
    - candidates: set once the edits are complete.
    """

    method: str
    row: torch.Tensor
    candidates: Candidates | None = None


def apply_edits(raw: torch.Tensor, slot: Slot, allowed: Mask | None = None) -> Iterator[Step]:
    """Yield the row after each edit method that did something. Then yield the final row, without a name.

    Raises:
        BadRowError: the row has no distribution, before or after the edits.
    """
    check_row(raw)
    row = raw
    by_method: list[tuple[str, Sequence[Edit]]] = [] if allowed is None else [("grammar", [allowed])]
    by_method += [(method.name, method.edits(slot)) for method in slot.edit_methods]
    for name, made in by_method:
        if made:
            row = raw.clone() if row is raw else row
            for edit in made:
                APPLY[type(edit)](row, edit)
            yield Step(name, row)
    if row is not raw:
        check_row(row)
    yield Step("", row)


def edit_row(raw: torch.Tensor, slot: Slot, allowed: Mask | None = None) -> torch.Tensor:
    """Return the row [V] (float32, not modified) after its grammar mask and its slot's edits.

    Raises:
        BadRowError: the row has no distribution, before or after the edits.
    """
    row = raw
    for step in apply_edits(raw, slot, allowed):
        row = step.row
    return row


def check_row(row: torch.Tensor) -> None:
    """Raise BadRowError unless the row can be drawn from."""
    status = int(kernels.argmax(row[None])[1])
    if status != OK:
        raise BadRowError(status)


def walk_steps(raw: torch.Tensor, slot: Slot, position: int = 0, allowed: Mask | None = None) -> Iterator[Step]:
    """Yield all steps of a row before the draw: its edits, the candidates after them, and its refinements unless it is
    greedy. Arguments and errors are those of `compute_distribution`."""
    slot.basis = None  # the old basis belongs to another row
    row = raw
    for step in apply_edits(raw, slot, allowed):
        row = step.row
        if step.method:
            yield step
    candidates, context = Candidates.of(row), Context(slot, position, row)
    yield Step("", row, candidates)
    for method in slot.refinements:
        candidates = method.apply(candidates, context)
        yield Step(method.name, row, candidates)


def compute_distribution(raw: torch.Tensor, slot: Slot, position: int = 0, allowed: Mask | None = None) -> Candidates:
    """Return a row's candidates after its slot's edits and, unless greedy, refinements.

    Args:
        raw: float32 [V], not modified.
        position: position of the row's token. Only XTC reads it.
        allowed: the grammar's mask of this row.

    Raises:
        BadRowError: every token is masked, or an edit made a logit overflow.
    """
    candidates = None
    for step in walk_steps(raw, slot, position, allowed):
        candidates = step.candidates
    assert candidates is not None
    return candidates


def scores_of(candidates: Candidates, slot: Slot, position: int, stream: int = DRAW_STREAM) -> torch.Tensor:
    """Return the scores, float32 [n]; the largest wins. They are the logits if greedy, else the logits plus Gumbel
    noise."""
    if slot.params.greedy:
        return candidates.logits
    return candidates.logits + kernels.gumbel(slot.key, position, candidates.ids, stream)


def draw_token(candidates: Candidates, slot: Slot, position: int, stream: int = DRAW_STREAM) -> int:
    """Return the token: the largest logit if greedy, else Gumbel-max. Ties go to the smaller id."""
    scores = scores_of(candidates, slot, position, stream)
    return int(candidates.ids[int((scores == scores.max()).nonzero()[0])])


@dataclass(frozen=True, slots=True)
class Target:
    """One row's distribution. p: float64 [V], the distribution to draw from (one-hot if greedy)."""

    raw: torch.Tensor
    candidates: Candidates
    p: torch.Tensor


def make_target(raw: torch.Tensor, slot: Slot, position: int, allowed: Mask | None = None) -> Target:
    """Return the row's data for verification.

    Raises:
        BadRowError: see `compute_distribution`.
    """
    return target_of(raw, compute_distribution(raw, slot, position, allowed), slot, position)


def target_of(raw: torch.Tensor, candidates: Candidates, slot: Slot, position: int) -> Target:
    """Return the row's data for verification, from its candidates."""
    p = torch.zeros(raw.numel(), dtype=torch.float64)
    if slot.params.greedy:
        p[draw_token(candidates, slot, position)] = 1.0
    else:
        p[candidates.ids] = candidates.probabilities()
    return Target(raw, candidates, p)


class Choice(NamedTuple):
    """How a row came to its token.

    - drawn_from: the candidates of the draw, whose noise has this stream. None: the token was forced, or is an accepted
      draft.
    - bound: the draft is accepted if its probability is above this bound; None if the rule has no such bound.
    """

    token: int
    drawn_from: Candidates | None = None
    stream: int = DRAW_STREAM
    bound: float | None = None


def make_choice(candidates: Candidates, slot: Slot, position: int, stream: int = DRAW_STREAM) -> Choice:
    """Draw as `draw_token` does. Return the token with the candidates of the draw."""
    return Choice(draw_token(candidates, slot, position, stream), candidates, stream)


def choose_token(row: Target, slot: Slot, position: int) -> Choice:
    """Return the token of a row without a draft: the forced one, or the drawn one."""
    return Choice(slot.forced) if slot.forced is not None else make_choice(row.candidates, slot, position)


def report_logprobs(row: Target, slot: Slot, token: int) -> TokenLogprobs | None:
    """Return the logprobs of the token that the slot's request wants, or None."""
    if not slot.reported:
        return None
    basis = row.candidates if slot.params.logprobs_mode == "processed" else Candidates.of(row.raw)
    params = slot.params
    return make_token_logprobs(
        basis, token, params.logprobs or 0, row.raw.numel(), params.report_entropy, params.logprob_token_ids
    )


def survivors_of(row: Target, slot: Slot, token: int) -> list[torch.Tensor]:
    """Return one tensor, int64: the ascending ids that the token was drawn from. Without a choice (a greedy row, a
    forced token) it has the token alone. Return an empty list if no request needs the ids."""
    if not slot.params.return_sampling_mask:
        return []
    alone = slot.params.greedy or slot.forced is not None
    return [torch.tensor([token]) if alone else row.candidates.ids]
