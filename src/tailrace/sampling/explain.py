"""Why a token came: the walk of the reference pipeline over one row, with every step kept.

There is no second implementation of any method: the steps are those that sampling/reference.py and sampling/verify.py
draw by. The slot is the same afterwards. record.py makes the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tailrace.explanation import ExplainOptions, Explanation, Origin
from tailrace.kernels.program import Mask
from tailrace.sampling.record import Outcome, Pair, Record, Walked
from tailrace.sampling.reference import Choice, drawn, steps
from tailrace.sampling.request_slot import RequestSlot


def explain_row(
    raw: torch.Tensor,
    slot: RequestSlot,
    position: int,
    options: ExplainOptions,
    allowed: Mask | None = None,
    guided: Pair | None = None,
    token: int | None = None,
) -> Explanation:
    """Why the token came that this row decides. (More than six parameters: a row, its slot, and all else that its token
    depends on.)

    Args:
        raw: float32 [V] on the CPU, not modified: the model's own row; with guidance the combined one.
        slot: as it stands when the row is drawn from; the same afterwards.
        position: of the token in the whole sequence, the noise's counter.
        allowed: by the grammar, at this row. guided: the conditional and the unconditional row that `raw` was made of.
        token: the one that came; None: the one that this row decides (forced, or drawn).

    Raises:
        BadRowError: nothing can be drawn from the row.
        ParameterError: the options name a token outside the vocabulary.
    """
    options.check_vocab(raw.numel())
    with unchanged(slot):
        walked = walk(raw, slot, position, allowed)
        choice = drawn(walked.candidates, slot, position) if slot.forced is None else Choice(slot.forced)
    origin: Origin = "forced" if slot.forced is not None else "greedy" if slot.params.greedy else "drawn"
    outcome = Outcome(choice.token if token is None else token, origin, choice)
    return Record(walked, slot, position, outcome).made(options, guided)


@contextmanager
def unchanged(slot: RequestSlot) -> Iterator[None]:
    """What drawing leaves in the slot is as it was."""
    basis, updates = slot.basis, list(slot.updates)
    try:
        yield
    finally:
        slot.basis, slot.updates[:] = basis, updates


def walk(raw: torch.Tensor, slot: RequestSlot, position: int, allowed: Mask | None) -> Walked:
    """The steps of `reference.steps`, kept.

    Raises:
        BadRowError: nothing can be drawn from the row.
    """
    walked: Walked | None = None
    edits: list[tuple[str, torch.Tensor]] = []
    for method, row, candidates in steps(raw, slot, position, allowed):
        if candidates is None:
            edits.append((method, row.clone()))
        elif walked is None:
            walked = Walked(raw, row, candidates, edits)
        else:
            walked.refinements.append((method, candidates))
    assert walked is not None
    return walked
