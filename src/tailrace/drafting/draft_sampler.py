"""Draft logits → draft tokens. This module knows no model: the drafter passes in the logits and names the requests that
want another draft.

How a request's drafts are verified (sampling/verify.py) decides how they are sampled:

- Coupled, for rule "exact" and for every greedy request. The draft is the token that the request's own sampler would
  draw from these logits, with the request's key, position and methods. Draft and target share the Gumbel noise, so they
  differ only where their logits do (Daliri et al., arXiv 2408.07978). These drafts are one-hot.
- From a distribution q, for every other rule. q is returned with the draft. It is the request's own distribution over
  the draft logits.

Drafts of the second kind must be independent of the acceptance draws, and of drafts that were rejected before. So draft
j of a step has a noise stream of its own, at the position where the step begins. No two steps begin at the same
position. Only XTC's coin is shared with verification: it chooses no token, and given the coin both distributions are
right.

Kernels sample both kinds, all rows of a call at once, and q stays where the logits are. The reference computes q row by
row for requests that ask for what the kernels don't have.

While a step drafts, each request's slot includes the drafts so far, so that penalties, forced tokens and mirostat see
them. Afterwards the slot is as it was. Grammar masks are not applied here: drafts that a grammar forbids are cut off
before verification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch.nn import functional as F

from tailrace import kernels
from tailrace.drafting.base import Draft, DraftRequest
from tailrace.kernels.constants import DRAFT_STREAM
from tailrace.kernels.proposals import ProposalMemory, ProposalTensor
from tailrace.kernels.rows import Rows
from tailrace.kernels.status import OK
from tailrace.sampling import Sampler
from tailrace.sampling.backends.base import DraftingBackend
from tailrace.sampling.backends.reference import ReferenceBackend
from tailrace.sampling.reference import BadRowError, compute_distribution
from tailrace.sampling.slot import Slot

# (logits, the index of each row's request, rows to sample) → each of those rows' tokens; None: the row is unusable
SampleRows = Callable[[torch.Tensor, Sequence[int], list[int]], dict[int, int | None]]


class DraftSampler:
    """Samples drafts for the requests in the sampler's slots. scored: drafts get scores."""

    def __init__(self, sampler: Sampler, scored: bool = True) -> None:
        self.sampler, self.scored = sampler, scored

    @contextmanager
    def start(self, requests: Sequence[DraftRequest]) -> Iterator[DraftBatch]:
        """Yield the drafts of one step, with at most one request per slot. On exit the slots are as before.

        Raises:
            ValueError: a slot is empty.
        """
        draft_batch = DraftBatch(self.sampler, requests, self.scored)
        try:
            yield draft_batch
        finally:
            draft_batch.restore_slots()


class DraftBatch:
    """The drafts of one step for all requests. tokens: the drafts of each request so far."""

    def __init__(self, sampler: Sampler, requests: Sequence[DraftRequest], scored: bool = True) -> None:
        self.scored = scored
        self.sampler, self.requests, self.vocab_size = sampler, requests, sampler.slots.vocab_size
        self.slots = [sampler.slots[request.slot] for request in requests]
        self.before = [(dict(slot.state), list(slot.updates)) for slot in self.slots]
        self.tokens: list[list[int]] = [[] for _ in requests]
        self.scores: list[list[float]] = [[] for _ in requests]
        self.q: dict[int, ProposalMemory] = {}  # the distributions, where drafts have one

    def sample(self, logits: torch.Tensor, indices: Sequence[int], scores: Sequence[float] | None = None) -> list[int]:
        """Draw one more draft for each of these requests, unless its logits are unusable (NaN, +inf, all masked).

        Args:
            logits: [len(indices), V'] of bf16, f16 or f32, on any device. V' may differ from the target's V: an id that
                only one of the two has is never drafted.
            indices: of the requests, in the order of the rows.
            scores: the scores of these drafts, if the drafter has its own; see drafting/base.py.

        Returns:
            The indices of the requests that got a draft and want another.
        """
        if not indices:
            return []
        logits = fit_vocabulary(logits, self.vocab_size)
        backend = self._drafting_backend(logits.device)
        methods: dict[SampleRows, list[int]] = {}
        for row, i in enumerate(indices):
            methods.setdefault(self._pick_method(i, backend), []).append(row)
        found: dict[int, int | None] = {}
        for sample_rows, rows in methods.items():
            found |= sample_rows(logits, indices, rows)
        unfinished = []
        if self.scored and scores is None:
            scores = score_rows(logits)
        for row, i in enumerate(indices):
            token = found[row]
            if token is None:
                continue
            self.tokens[i].append(token)
            if self.scored and scores is not None:
                self.scores[i].append(scores[row])
            self.slots[i].extend([token])
            self._notify_slots(i)
            if len(self.tokens[i]) < self.requests[i].count:
                unfinished.append(i)
        return unfinished

    def slice_tokens(self, i: int, position: int) -> list[int]:
        """Return the tokens and drafts of the request from this position on."""
        request = self.requests[i]
        return [*request.tokens[position:], *self.tokens[i][max(0, position - len(request.tokens)) :]]

    def drafts(self) -> list[Draft]:
        """Return the draft of each request."""
        return [
            Draft(tokens, self.q[i].q[: len(tokens)] if tokens and i in self.q else None, self.scores[i])
            for i, tokens in enumerate(self.tokens)
        ]

    def restore_slots(self) -> None:
        """Restore the slots to their state before the first draft."""
        for i, (slot, tokens, (state, updates)) in enumerate(zip(self.slots, self.tokens, self.before, strict=True)):
            for _ in tokens:
                slot.pop()
            slot.state.update(state)
            slot.updates[:] = updates
            if tokens:
                self._notify_slots(i)

    def _notify_slots(self, i: int) -> None:
        """Report to the sampler that the tokens of the request's slot have changed."""
        self.sampler.slots.advance(self.requests[i].slot, self.slots[i].moves)

    def _drafting_backend(self, device: torch.device) -> DraftingBackend[Any] | None:
        """Return the backend that draws drafts from logits on this device; None for the reference, which draws none."""
        backend = self.sampler.backend_for(device)
        return None if isinstance(backend, ReferenceBackend) else cast("DraftingBackend[Any]", backend)

    def _pick_method(self, i: int, backend: DraftingBackend[Any] | None) -> SampleRows:
        """Return the function that samples the request's drafts."""
        request = self.requests[i]
        if request.rule == "exact" or self.slots[i].params.greedy:
            return self._sample_coupled
        served = backend is not None and backend.serves_drafts(request.slot)
        return self._sample_from_q if served else self._sample_from_q_row_by_row

    def _make_rows(self, indices: Sequence[int], rows: list[int]) -> Rows:
        """Return the next position of each row's request, as Rows."""
        requests = [self.requests[indices[row]] for row in rows]
        positions = [
            len(request.tokens) + len(self.tokens[indices[row]]) for row, request in zip(rows, requests, strict=True)
        ]
        return Rows.plain([request.slot for request in requests], rows, positions)

    def _sample_coupled(self, logits: torch.Tensor, indices: Sequence[int], rows: list[int]) -> dict[int, int | None]:
        """Return the tokens that the sampler draws from these rows."""
        out = self.sampler(logits, self._make_rows(indices, rows))
        return tokens_of(rows, out.token_ids[:, 0], out.status)

    def _sample_from_q(self, logits: torch.Tensor, indices: Sequence[int], rows: list[int]) -> dict[int, int | None]:
        """Draw a token from each row's distribution q, and keep the distributions."""
        backend = self._drafting_backend(logits.device)
        assert backend is not None
        noise = [self._locate_noise(indices[row]) for row in rows]
        to = [self._q_place(indices[row], logits.device) for row in rows]
        out = backend.propose(logits, self._make_rows(indices, rows), noise, to)
        return tokens_of(rows, out.token_ids, out.status)

    def _sample_from_q_row_by_row(
        self, logits: torch.Tensor, indices: Sequence[int], rows: list[int]
    ) -> dict[int, int | None]:
        """Draw a token from each row's distribution q by the reference, row by row."""
        found: dict[int, int | None] = dict.fromkeys(rows)
        for row in rows:
            i = indices[row]
            with suppress(BadRowError):
                q = compute_proposal(logits[row], self.slots[i], len(self.requests[i].tokens) + len(self.tokens[i]))
                place, at = self._q_place(i, logits.device)
                place.write(at, q)
                found[row] = draw_by_inversion(q, kernels.uniform(self.slots[i].key, *self._locate_noise(i)))
        return found

    def _q_place(self, i: int, device: torch.device) -> tuple[ProposalMemory, int]:
        """Return the memory and its row for the q of the request's next draft."""
        if i not in self.q:
            backend, count = self._drafting_backend(device), self.requests[i].count
            self.q[i] = (
                ProposalTensor(count, self.vocab_size, device) if backend is None else backend.proposal_memory(count)
            )
        return self.q[i], len(self.tokens[i])

    def _locate_noise(self, i: int) -> tuple[int, int]:
        """Return position and stream of the noise for the request's next draft."""
        return noise_of(len(self.requests[i].tokens), len(self.tokens[i]))


def score_rows(logits: torch.Tensor) -> list[float]:
    """Return the largest probability of each row [R, V] of draft logits, at temperature 1. It is known before a token
    is drawn, so it may decide whether the draft is verified."""
    return logits.softmax(1, torch.float32).amax(1).tolist()


def noise_of(begin: int, step: int) -> tuple[int, int]:
    """Return position and stream of the noise for draft number `step` of a step that begins at position `begin`."""
    return begin, DRAFT_STREAM + step


def tokens_of(rows: list[int], token_ids: torch.Tensor, status: torch.Tensor) -> dict[int, int | None]:
    """Return each row's token; None if no token could be drawn."""
    drawn = zip(rows, token_ids.tolist(), status.tolist(), strict=True)
    return {row: token if status == OK else None for row, token, status in drawn}


def fit_vocabulary(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return logits [R, V'] as [R, V]: ids from V on are cut off, missing ids get −inf."""
    missing = vocab_size - logits.shape[1]
    return F.pad(logits, (0, missing), value=-math.inf) if missing > 0 else logits[:, :vocab_size]


def compute_proposal(row: torch.Tensor, slot: Slot, position: int) -> torch.Tensor:
    """Return q for a row of draft logits [V]: float32 [V], on the CPU.

    It is the reference's distribution for the request, so that it covers the same tokens as the target's. It is one-hot
    for a forced token.

    Raises:
        BadRowError: the row can't be drawn from, or the request's edits leave no token.
    """
    candidates = compute_distribution(row.float().cpu(), slot, position)
    if slot.forced is not None:
        return F.one_hot(torch.tensor(slot.forced), row.numel()).float()
    q = torch.zeros(row.numel())
    q[candidates.ids] = candidates.probabilities().float()
    return q


def draw_by_inversion(q: torch.Tensor, u: float) -> int:
    """Return the token of q [V] at the share u in (0, 1) of its mass. Its q is > 0."""
    mass = q.double().cumsum(0)
    # Stay below the whole mass, even if the product is rounded up.
    at = min(u * float(mass[-1]), math.nextafter(float(mass[-1]), 0.0))
    return int(torch.searchsorted(mass, at, right=True))
