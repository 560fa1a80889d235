"""The reference sampler as a backend: one request at a time, in torch. Other backends fall back to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import torch

from tailrace.kernels.constants import REPORTED
from tailrace.kernels.needs import SlotNeeds, check_rows
from tailrace.kernels.output import KernelOutput, LogprobArrays, SamplingMask
from tailrace.kernels.program import Mask
from tailrace.kernels.rows import Rows
from tailrace.kernels.types import readable
from tailrace.sampling.backends.base import Pending, Sampled, drafted_requests
from tailrace.sampling.guidance import raw_row
from tailrace.sampling.logprobs import write_entries
from tailrace.sampling.reference import BadRowError, compute_distribution
from tailrace.sampling.slots import Slots
from tailrace.sampling.verify import DraftRows, Drafts, verify_request


class ReferenceBackend:
    """A backend that reads the slots directly. It only tracks which slots are occupied."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.needs = slots, SlotNeeds.of(len(slots.slots))

    def add(self, slot: int) -> None:
        self.needs.write(slot, self.slots[slot].program)

    def edit(self, slot: int) -> None:
        pass

    def advance(self, slot: int) -> None:
        pass

    def remove(self, slot: int) -> None:
        self.needs.clear(slot)

    def warm_up(self, dtypes: set[torch.dtype]) -> None:
        pass

    def sample(self, logits: torch.Tensor, rows: Rows) -> Pending:
        rows = rows.on_host()
        asked = check_rows(readable(logits), rows, self.needs)
        drafted_requests(self.slots, rows)
        sampled = make_unfilled(rows, asked.top if asked.flags & REPORTED else None)
        fall_back(self.slots, logits, rows, range(rows.num_requests), sampled)
        arrays = sampled.logprob_arrays
        there = None if arrays is None else LogprobArrays(*(part.to(logits.device) for part in arrays))
        return Pending(sampled.token_ids.to(logits.device), lambda: sampled, there)

    def refine(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        return refine_rows(self.slots, logits, rows.on_host(), range(rows.num_requests)).to(logits.device)


def refine_rows(slots: Slots, logits: torch.Tensor, rows: Rows, requests: Iterable[int]) -> torch.Tensor:
    """Return the refined rows of these requests, float32 [n, V], on the host. All are −inf if a row has no
    distribution."""
    found = []
    for i in requests:
        raw = raw_row(logits, rows, i)
        refined = torch.full(raw.shape, -torch.inf)
        with contextlib.suppress(BadRowError):
            kept = compute_distribution(raw, slots[int(rows.slot[i])], int(rows.position[i]))
            refined[kept.ids] = kept.logits - kept.logits.max()
        found.append(refined)
    return torch.stack(found)


def make_unfilled(rows: Rows, top: int | None) -> Sampled:
    """Allocate the tokens of these rows, and logprobs with `top` alternatives. The contents are undefined."""
    shape = (rows.num_requests, rows.width)
    arrays = None if top is None else LogprobArrays.empty(shape, top)
    return Sampled(*KernelOutput.empty(*shape)[:3], logprob_arrays=arrays)


def fall_back(slots: Slots, logits: torch.Tensor, rows: Rows, requests: Iterable[int], sampled: Sampled) -> None:
    """Draw for these requests, and write the results into `sampled`."""
    survived: dict[int, torch.Tensor] = {}
    asked = False
    for i in requests:
        begun_s = time.thread_time()
        draft_rows = draft_rows_of(slots, logits, rows, i)
        tokens, logprobs, status = verify_request(draft_rows)
        sampled.token_ids[i] = -1
        sampled.token_ids[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        sampled.num_tokens[i], sampled.status[i] = len(tokens), status
        slot = draft_rows.slot
        if slot.reported:
            sampled.logprobs[i] = entries = [entry for entry in logprobs if entry is not None]
            if sampled.logprob_arrays is not None:
                write_entries(entries, sampled.logprob_arrays, i, slot.params.logprobs or 0)
        asked |= slot.params.return_sampling_mask
        survived |= dict(enumerate(draft_rows.survivors, i * rows.width))
        slot.took_s = time.thread_time() - begun_s
    if asked:
        mask = sampled.sampling_mask or SamplingMask.empty(rows.num_requests * rows.width)
        sampled.sampling_mask = mask.replaced(survived)


def replace_requests(sampled: Sampled, again: Sampled, requests: list[int]) -> None:
    """Copy the results of these requests from `again` to `sampled`."""
    sampled.token_ids[requests] = again.token_ids[requests]
    sampled.num_tokens[requests] = again.num_tokens[requests]
    sampled.status[requests] = again.status[requests]
    for i in requests:
        sampled.logprobs[i] = again.logprobs[i]
    if again.sampling_mask is not None:
        width, parts = sampled.token_ids.shape[1], again.sampling_mask.parts()
        mask = sampled.sampling_mask or SamplingMask.empty(len(parts))
        sampled.sampling_mask = mask.replaced(
            {p: parts[p] for i in requests for p in range(i * width, (i + 1) * width)}
        )


def draft_rows_of(slots: Slots, logits: torch.Tensor, rows: Rows, request: int) -> DraftRows:
    """Return the rows of a request for verification."""
    first, last = int(rows.start[request]), int(rows.start[request + 1]) - 1
    position, draft_tokens = int(rows.position[first]), rows.draft[first:last].tolist()
    q = rows.proposals_of(request)
    drafts = Drafts(position, draft_tokens, None if q is None else q.cpu(), rows.rule_of(request))
    raw = [raw_row(logits, rows, row) for row in range(first, last + 1)]
    masks = [mask_of_row(rows, row) for row in range(first, last + 1)]
    return DraftRows(raw, slots[int(rows.slot[first])], drafts, masks)


def mask_of_row(rows: Rows, row: int) -> Mask | None:
    """Return the grammar's mask of a row, or None."""
    if rows.mask is None or rows.masks is None or (place := int(rows.mask[row])) < 0:
        return None
    return Mask(rows.masks[place].numpy().view("uint32"))
