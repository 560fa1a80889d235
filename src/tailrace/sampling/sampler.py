"""Logits → token ids: edit, prune, refine, draw, report; with drafts, verify. Knows no method by name, no request, no text.

On the CPU one call of the kernels does a whole step (kernels/cpu/sample.py). A request that asks for what they don't have goes
the reference's way (sampling/reference.py, sampling/verify.py), alone. Both draw by Gumbel-max with noise that is a function of
(key, position, token id): a row's token depends on its own logits, parameters, key and position alone.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tailrace.kernels.cpu.sample import Outcome, nothing, sample
from tailrace.sampling.report import Logprobs
from tailrace.sampling.rows import Rows
from tailrace.sampling.slots import Slot, Slots
from tailrace.sampling.verify import verify

Backend = Literal["reference", "cpu"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """token_ids: int64 [N, K + 1], −1 where there is none. num_tokens: int64 [N], 0 where status is not OK. status: int32 [N],
    kernels/status.py. logprobs: per request one entry per token, or None where it did not ask."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    logprobs: list[list[Logprobs] | None]


class Sampler:
    """Draws for the requests of a step from their slots' distributions; does not commit what it drew.

    Args:
        backend: None takes the kernels where the logits are on the CPU.
    """

    def __init__(self, slots: Slots, backend: Backend | None = None) -> None:
        self.slots = slots
        self.backend: Backend | None = backend

    def __call__(self, logits: torch.Tensor, rows: Rows) -> Sampled:
        """logits [L, V] of bf16, f16 or f32, rows may be strided; not modified. rows: see sampling/rows.py.

        Raises:
            ValueError: the vocabulary differs, or a slot is empty.
        """
        if logits.dim() != 2 or logits.shape[1] != self.slots.vocab_size:
            raise ValueError(f"logits must have {self.slots.vocab_size} columns, got {tuple(logits.shape)}")
        owners = rows.slot if rows.width == 1 and rows.slot.numel() == rows.num_requests else rows.slot[rows.start[:-1]]
        inside = bool(((owners >= 0) & (owners < len(self.slots.slots))).all())
        taken = self.slots.taken[owners] if inside else torch.zeros(1)
        on_device: Backend = "cpu" if logits.device.type == "cpu" else "reference"
        backend = self.backend or on_device
        if backend == "cpu" and rows.width == 1 and bool((taken == 1).all()):
            drawn = self._kernels(logits, rows)
            return Sampled(drawn.token_ids, drawn.num_tokens, drawn.status, [None] * rows.num_requests)
        return self._with_records(logits, rows, owners.tolist(), backend)

    def _kernels(self, logits: torch.Tensor, rows: Rows, **more: Any) -> Outcome:
        return sample(
            logits, self.slots.programs, slot=rows.slot, source=rows.source, position=rows.position, start=rows.start,
            draft=rows.draft, rule=rows.rule, proposals=rows.proposals, width=rows.width, **more,
        )  # fmt: skip

    def _with_records(self, logits: torch.Tensor, rows: Rows, owners: list[int], backend: Backend) -> Sampled:
        """A step in which somebody asks for reports, or for what no kernel has, or in which drafts are verified."""
        entries = [self.slots[index] for index in owners]
        if rows.width > 1:
            self._check_drafts(rows, owners)
        apart = torch.zeros(len(owners), dtype=torch.uint8)
        for i, entry in enumerate(entries):
            drafted = rows.width > 1 and int(rows.start[i + 1] - rows.start[i]) > 1
            apart[i] = backend == "reference" or entry.rare or (drafted and entry.steps)
        reported = [entry.reported for entry in entries]
        if backend == "cpu":
            top = max((entry.params.logprobs or 0 for entry in entries), default=0)
            outcome = self._kernels(logits, rows, skip=apart, top=top, reports=any(reported))
        else:
            outcome = nothing(len(owners), rows.width)
        reports: list[list[Logprobs] | None] = [None for _ in entries]
        if backend == "cpu" and any(reported):
            reports = read(outcome, entries, reported, apart)
        for i in apart.nonzero().squeeze(1).tolist():
            self._by_reference(logits, rows, i, outcome, reports)
        return Sampled(outcome.token_ids, outcome.num_tokens, outcome.status, reports)

    def _check_drafts(self, rows: Rows, owners: list[int]) -> None:
        """Raise ValueError for drafts that can't be verified together."""
        if not -1 <= int(rows.draft.min()) <= int(rows.draft.max()) < self.slots.vocab_size:
            raise ValueError(f"drafts must be token ids in 0 … {self.slots.vocab_size - 1}")
        for index, count in Counter(owners).items():
            entry = self.slots[index]
            if count > 1 and entry.history is not None:
                raise ValueError(
                    f"slot {index} has {count} requests with drafts in one step, and a history that they share"
                )
            if entry.mask is not None:
                raise ValueError(f"slot {index} has one mask, and drafts that would each need their own")

    def _by_reference(
        self, logits: torch.Tensor, rows: Rows, i: int, outcome: Outcome, reports: list[list[Logprobs] | None]
    ) -> None:
        """Fill in request i."""
        first, last = int(rows.start[i]), int(rows.start[i + 1]) - 1
        slot = self.slots[int(rows.slot[first])]
        tokens, described, status = verify(
            [logits[int(source)] for source in rows.source[first : last + 1]], slot, int(rows.position[first]),
            rows.draft[first:last].tolist(), None if rows.proposals is None else rows.proposals[first:last], rows.rule_of(i),
        )  # fmt: skip
        outcome.token_ids[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        outcome.num_tokens[i], outcome.status[i] = len(tokens), status
        if slot.reported:
            reports[i] = [entry for entry in described if entry is not None]


def read(
    outcome: Outcome, entries: list[Slot], reported: list[bool], apart: torch.Tensor
) -> list[list[Logprobs] | None]:
    """The requests' reports out of the kernels' arrays; None for those that did not ask or went apart."""
    # whole arrays become lists at once: a tensor per row would cost more than the sampling
    columns = (outcome.logprob, outcome.rank, outcome.top_ids, outcome.top_logprobs, outcome.entropy)
    logprob, rank, top_ids, top_logprobs, entropy = (column.tolist() for column in columns)
    counts, away = outcome.num_tokens.tolist(), apart.tolist()
    reports: list[list[Logprobs] | None] = [None] * len(entries)
    for i, entry in enumerate(entries):
        if not reported[i] or away[i]:
            continue
        top, entropies = entry.params.logprobs or 0, entry.params.report_entropy
        reports[i] = [
            Logprobs(
                logprob[i][j] if entry.params.logprobs is not None else math.nan, rank[i][j], top_ids[i][j][:top],
                top_logprobs[i][j][:top], *(entropy[i][j] if entropies else ()),
            )
            for j in range(counts[i])
        ]  # fmt: skip
    return reports
