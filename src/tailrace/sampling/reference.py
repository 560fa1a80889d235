"""The reference sampler: one request at a time in torch, the specification that the kernels are compared with. Rows
that ask for what the kernels don't have fall back to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tailrace import kernels
from tailrace.kernels.program import Add, Ban, Dense, Edit, Lift, Mask, Penalty
from tailrace.kernels.status import MESSAGES, OK, PROCESSOR
from tailrace.logprobs import TokenLogprobs
from tailrace.sampling.candidates import Candidates, Context
from tailrace.sampling.logprobs import describe
from tailrace.sampling.pipeline import REFINEMENTS
from tailrace.sampling.request_slot import RequestSlot

log = logging.getLogger(__name__)

DRAW_STREAM = 0  # of the noise; csrc/draw.h


class BadRowError(Exception):
    """The edits left a row without a distribution; `status` as in kernels/status.py."""

    def __init__(self, status: int) -> None:
        super().__init__(MESSAGES[status])
        self.status = status


def mask(row: torch.Tensor, edit: Mask) -> None:
    bits = torch.from_numpy(edit.words.view("uint8").copy())
    allowed = (bits[:, None] >> torch.arange(8) & 1).bool().flatten()[: row.numel()]
    row[~allowed] = float("-inf")


def ban(row: torch.Tensor, edit: Ban) -> None:
    row[torch.from_numpy(edit.ids.astype("int64"))] = float("-inf")


def add(row: torch.Tensor, edit: Add) -> None:
    row[torch.from_numpy(edit.ids.astype("int64"))] += torch.from_numpy(edit.values)


def penalise(row: torch.Tensor, edit: Penalty) -> None:
    ids, repeated, counted = (torch.tensor(part, dtype=torch.int64) for part in edit.counts.lists())
    values, r = row[ids], edit.repetition
    if r != 1.0:
        values = torch.where(repeated > 0, torch.where(values > 0, values / r, values * r), values)
    lowered = values - edit.frequency * counted.float() - edit.presence
    row[ids] = torch.where(counted > 0, lowered, values)


def lift(row: torch.Tensor, edit: Lift) -> None:
    ids = torch.from_numpy(edit.ids.astype("int64"))
    row[ids] = torch.where(row[ids].isfinite(), row[ids] + row[ids].abs() * edit.factor, row[ids])


def dense(row: torch.Tensor, edit: Dense) -> None:
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
                raise TypeError(f"a processor must return nothing, or another {wanted}, got {shown(result)}")
            row.copy_(result)
        if row.shape != shape:
            raise TypeError(f"a processor must leave the row's shape {tuple(shape)} as it is, got {tuple(row.shape)}")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the operator's code, the request's arguments: only this request fails
        log.exception("a custom processor failed")
        raise BadRowError(PROCESSOR) from error


def shown(result: object) -> str:
    """What a processor returned, as the log says it."""
    if isinstance(result, torch.Tensor):
        return f"{result.dtype} {tuple(result.shape)} on {result.device}"
    return type(result).__name__


APPLY: dict[type[Edit], Callable[[torch.Tensor, Edit], None]] = {
    Mask: mask,
    Ban: ban,
    Add: add,
    Penalty: penalise,
    Lift: lift,
    Dense: dense,
}  # type: ignore[dict-item]


class Step(NamedTuple):
    """One method's work on a row.

    method: its name in sampling/pipeline.py, "grammar" for the mask, "" where the edits end. row: float32 [V], edited
    so far; the next edit goes on in it. candidates: once the edits are done.
    """

    method: str
    row: torch.Tensor
    candidates: Candidates | None = None


def edits(raw: torch.Tensor, slot: RequestSlot, allowed: Mask | None = None) -> Iterator[Step]:
    """A row's edits, one method after the other, and the row that they leave, as a last step without a name.

    Raises:
        BadRowError: the row, or what the edits make of it, has no distribution.
    """
    check(raw)
    row = raw
    for name, program in slot.named_edits if allowed is None else [("grammar", [allowed]), *slot.named_edits]:
        if program:
            row = raw.clone() if row is raw else row
            for edit in program:
                APPLY[type(edit)](row, edit)
            yield Step(name, row)
    if row is not raw:
        check(row)
    yield Step("", row)


def edited(raw: torch.Tensor, slot: RequestSlot, allowed: Mask | None = None) -> torch.Tensor:
    """The row [V] (float32, not modified) after its grammar mask and its slot's edits.

    Raises:
        BadRowError: it, or what the edits make of it, has no distribution.
    """
    row = raw
    for step in edits(raw, slot, allowed):
        row = step.row
    return row


def check(row: torch.Tensor) -> None:
    """Raise BadRowError unless the row can be drawn from."""
    status = int(kernels.argmax(row[None])[1])
    if status != OK:
        raise BadRowError(status)


def steps(raw: torch.Tensor, slot: RequestSlot, position: int = 0, allowed: Mask | None = None) -> Iterator[Step]:
    """All that happens to a row before the draw: its edits, the candidates that they leave, and, unless greedy, its
    refinements. Arguments and errors as of `distribution`."""
    slot.basis = None  # of another row
    row = raw
    for step in edits(raw, slot, allowed):
        row = step.row
        if step.method:
            yield step
    candidates, context = Candidates.of(row), Context(slot, position, row)
    yield Step("", row, candidates)
    for name in slot.refinements:
        candidates = REFINEMENTS[name].apply(candidates, context)
        yield Step(name, row, candidates)


def distribution(raw: torch.Tensor, slot: RequestSlot, position: int = 0, allowed: Mask | None = None) -> Candidates:
    """The candidates a row leaves after its slot's edits and, unless greedy, refinements.

    Args:
        raw: float32 [V], not modified. position: the one it decides; only XTC looks at it. allowed: by the grammar, at
            this row.

    Raises:
        BadRowError: every token is masked, or an edit made a logit overflow.
    """
    candidates = None
    for step in steps(raw, slot, position, allowed):
        candidates = step.candidates
    assert candidates is not None
    return candidates


def scores_of(candidates: Candidates, slot: RequestSlot, position: int, stream: int = DRAW_STREAM) -> torch.Tensor:
    """float32 [n]; the largest wins. The logits if greedy, else with Gumbel noise."""
    if slot.params.greedy:
        return candidates.logits
    return candidates.logits + kernels.gumbel(slot.key, position, candidates.ids, stream)


def draw(candidates: Candidates, slot: RequestSlot, position: int, stream: int = DRAW_STREAM) -> int:
    """The token: the largest logit if greedy, else Gumbel-max. Ties to the smaller id."""
    scores = scores_of(candidates, slot, position, stream)
    return int(candidates.ids[int((scores == scores.max()).nonzero()[0])])


@dataclass(frozen=True, slots=True)
class Target:
    """One row's distribution. p: float64 [V], what is drawn from (one-hot if greedy)."""

    raw: torch.Tensor
    candidates: Candidates
    p: torch.Tensor


def target(raw: torch.Tensor, slot: RequestSlot, position: int, allowed: Mask | None = None) -> Target:
    """Everything that verification must know of a row.

    Raises:
        BadRowError: see `distribution`.
    """
    return target_of(raw, distribution(raw, slot, position, allowed), slot, position)


def target_of(raw: torch.Tensor, candidates: Candidates, slot: RequestSlot, position: int) -> Target:
    """The same of a row's candidates."""
    p = torch.zeros(raw.numel(), dtype=torch.float64)
    if slot.params.greedy:
        p[draw(candidates, slot, position)] = 1.0
    else:
        p[candidates.ids] = candidates.probabilities()
    return Target(raw, candidates, p)


class Choice(NamedTuple):
    """How a row came to its token. drawn_from: what it was drawn from, with the noise of this stream; None: it was not
    drawn, but forced, or a draft that was accepted. bound: where a draft is accepted if its probability is above
    something, that."""

    token: int
    drawn_from: Candidates | None = None
    stream: int = DRAW_STREAM
    bound: float | None = None


def drawn(candidates: Candidates, slot: RequestSlot, position: int, stream: int = DRAW_STREAM) -> Choice:
    """What `draw` says."""
    return Choice(draw(candidates, slot, position, stream), candidates, stream)


def choose(row: Target, slot: RequestSlot, position: int) -> Choice:
    """The token of a row without a draft: the forced one, or the drawn one."""
    return Choice(slot.forced) if slot.forced is not None else drawn(row.candidates, slot, position)


def logprobs_of(row: Target, slot: RequestSlot, token: int) -> TokenLogprobs | None:
    """What the slot's request wants to know of the token, if anything."""
    if not slot.reported:
        return None
    basis = row.candidates if slot.params.logprobs_mode == "processed" else Candidates.of(row.raw)
    params = slot.params
    return describe(
        basis, token, params.logprobs or 0, row.raw.numel(), params.report_entropy, params.logprob_token_ids
    )
