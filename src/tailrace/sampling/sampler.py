"""Logits → token ids: edit, refine, draw, report. The reference backend: row by row in torch, the specification that every
faster backend is compared with. Knows no method by name (sampling/pipeline.py), no request, no text.

The draw is Gumbel-max: argmax of logit + noise, the noise a function of (key, position, token id). So a row's token
depends on its own logits, parameters, key and position alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tailrace import kernels
from tailrace.kernels.status import MESSAGES, OK
from tailrace.sampling.pipeline import EDITS, REFINEMENTS
from tailrace.sampling.report import Logprobs, describe
from tailrace.sampling.row import Survivors
from tailrace.sampling.rows import Rows
from tailrace.sampling.slots import Slot, Slots

DRAW_STREAM = 0  # of the noise; other uses of a key take other streams


@dataclass(frozen=True, slots=True)
class Sampled:
    """token_ids: int64 [N, K + 1], −1 where there is none. num_tokens: int64 [N]. status: int32 [N], kernels/status.py.
    logprobs: per request one entry per token, or None where it did not ask."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    logprobs: list[list[Logprobs] | None]


class Sampler:
    """Draws one token per request of a step from its slot's distribution; does not commit them."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots

    def __call__(self, logits: torch.Tensor, rows: Rows) -> Sampled:
        """logits [L, V] of any float dtype, not modified; rows: see sampling/rows.py.

        Raises:
            ValueError: the rows carry drafts, which this backend does not verify, or the vocabulary differs.
        """
        if rows.start.numel() - 1 != rows.slot.numel():
            raise ValueError("the reference sampler draws plainly: one row per request, without drafts")
        if logits.shape[1] != self.slots.vocab_size:
            raise ValueError(f"logits must have {self.slots.vocab_size} columns, got {logits.shape[1]}")
        shared = rows.source.numel() == logits.shape[0] and bool((rows.source == torch.arange(logits.shape[0])).all())
        ids, status = kernels.argmax(logits if shared else logits[rows.source.to(logits.device)])
        ids, status = ids.cpu(), status.cpu()
        reports: list[list[Logprobs] | None] = [None] * rows.num_requests
        if self.slots.special:
            self._draw_special(logits, rows, ids, status, reports)
        return Sampled(ids[:, None], (status == OK).to(torch.int64), status, reports)

    def _draw_special(
        self,
        logits: torch.Tensor,
        rows: Rows,
        ids: torch.Tensor,
        status: torch.Tensor,
        reports: list[list[Logprobs] | None],
    ) -> None:
        """Replace the argmax of every row that wants more than that."""
        for i, (index, source, position) in enumerate(
            zip(rows.slot.tolist(), rows.source.tolist(), rows.position.tolist(), strict=True)
        ):
            slot = self.slots[index]
            if slot.plain_greedy or status[i] != OK:
                continue
            raw = logits[source].float().cpu()
            try:
                drawn_from = distribution(raw, slot)
            except BadRowError as error:
                ids[i], status[i] = -1, error.status
                continue
            token = draw(drawn_from, slot, position)
            ids[i] = token
            if slot.params.logprobs is not None:
                basis = drawn_from if slot.params.logprobs_mode == "processed" else Survivors.of(raw)
                reports[i] = [describe(basis, token, slot.params.logprobs, self.slots.vocab_size)]


class BadRowError(Exception):
    """The edits left a row without a distribution; `status` as in kernels/status.py."""

    def __init__(self, status: int) -> None:
        super().__init__(MESSAGES[status])
        self.status = status


def distribution(raw: torch.Tensor, slot: Slot) -> Survivors:
    """The survivors a row [V] (float32, not modified) leaves after its slot's edits and, unless greedy, refinements.

    Raises:
        BadRowError: every token is masked, or a penalty made a logit overflow.
    """
    row = raw.clone() if slot.edits else raw
    for name in slot.edits:
        EDITS[name].apply(row, slot)
    status = int(kernels.argmax(row[None])[1])
    if status != OK:
        raise BadRowError(status)
    survivors = Survivors.of(row)
    if not slot.params.greedy:
        for name in slot.refinements:
            survivors = REFINEMENTS[name].apply(survivors, slot.params)
    return survivors


def draw(survivors: Survivors, slot: Slot, position: int) -> int:
    """The token: the largest logit if greedy, else Gumbel-max. Ties to the smaller id."""
    scores = survivors.logits
    if not slot.params.greedy:
        scores = scores + kernels.gumbel(slot.key, position, survivors.ids, DRAW_STREAM)
    return int(survivors.ids[int((scores == scores.max()).nonzero()[0])])
