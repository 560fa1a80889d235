"""Draft logits → draft tokens. Knows no model: it is given logits, and says whose next draft is wanted.

Two ways, by how an ask's drafts will be verified (sampling/verify.py):

- coupled (rule "exact", and every greedy request): the draft is what the request's own sampler would draw from these
  logits, with the request's key, position and methods. Draft and target then share the Gumbel noise and differ only
  where their logits do (Daliri et al., arXiv 2408.07978): one-hot.
- drawn (every other rule): the draft is drawn from a distribution q that is returned with it: the request's own over
  the draft logits (in torch: with its edits, temperature, min-p, top-k and top-p alone). Its noise has
  streams of its own: drafts must be independent of the acceptance draws and of drafts rejected before. So draft j of a
  step has a stream of its own, at the position where the step begins, and no two steps begin at the same one. XTC's
  coin alone is the position's, as verification has it: it is no draw among tokens, and given the coin both laws are
  what they should be.

The CPU kernels make both, all rows of a call at once. Drawn ones that they don't serve (`Slot.unsupported`, logits on a
GPU) are made in torch.

While drafts are made, the request's slot stands where it would after the drafts before (penalties, forced tokens,
mirostat see them); afterwards it is as it was. No mask of a grammar is looked at: what it forbids is pruned before
verification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch.nn import functional as F

from tailrace import kernels
from tailrace.drafting.base import Draft, DraftRequest
from tailrace.kernels.cpu.proposal_buffers import ProposalBuffer, ProposalBuffers
from tailrace.kernels.rows import Rows
from tailrace.kernels.status import OK
from tailrace.params import SamplingParams
from tailrace.sampling import Sampler
from tailrace.sampling.backends.cpu import CPUBackend
from tailrace.sampling.reference import BadRowError, edited
from tailrace.sampling.request_slot import RequestSlot

DRAFT_STREAM = 16  # of the noise, for draft 0 of a step; draft j has DRAFT_STREAM + j. The sampler's are 0 … 3
# Logits, whose they are, and of which rows a draft is wanted → each of those rows' tokens, None where it can't be drawn
# from.
Way = Callable[[torch.Tensor, Sequence[int], list[int]], dict[int, int | None]]


class Picker:
    """Makes drafts for the requests in the sampler's slots."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self.buffers = sampler, ProposalBuffers(sampler.slots.vocab_size)

    @contextmanager
    def start(self, asks: Sequence[DraftRequest]) -> Iterator[Picks]:
        """The drafts of one step, at most one ask per slot. On leaving, the slots are as they were.

        Raises:
            ValueError: a slot is empty.
        """
        picks = Picks(self.sampler, asks, self.buffers)
        try:
            yield picks
        finally:
            picks.take_back()


class Picks:
    """Drafts that grow side by side. tokens: of each ask so far."""

    def __init__(self, sampler: Sampler, asks: Sequence[DraftRequest], buffers: ProposalBuffers) -> None:
        self.sampler, self.asks, self.vocab_size = sampler, asks, sampler.slots.vocab_size
        self.slots = [sampler.slots[ask.slot] for ask in asks]
        self.buffers = buffers
        self.before = [(dict(slot.state), list(slot.updates)) for slot in self.slots]
        self.tokens: list[list[int]] = [[] for _ in asks]
        self.q: dict[int, ProposalBuffer] = {}  # of the asks whose drafts are drawn

    def take(self, logits: torch.Tensor, who: Sequence[int]) -> list[int]:
        """One more draft for each of these asks, unless its logits are unusable (NaN, +inf, all masked).

        Args:
            logits: [len(who), V'] of bf16, f16 or f32, on any device. V' may be another than the target's V: ids that
                only the drafter has are never drafted, and ids that it lacks neither.

        Returns:
            Those of `who` that got one and want another.
        """
        if not who:
            return []
        logits = fitted(logits, self.vocab_size)
        ways: dict[Way, list[int]] = {}
        for row, i in enumerate(who):
            ways.setdefault(self._way(i, logits.is_cpu), []).append(row)
        found: dict[int, int | None] = {}
        for way, rows in ways.items():
            found |= way(logits, who, rows)
        going = []
        for row, i in enumerate(who):
            token = found[row]
            if token is None:
                continue
            self.tokens[i].append(token)
            self.slots[i].extend([token])
            self._moved(i)
            if len(self.tokens[i]) < self.asks[i].count:
                going.append(i)
        return going

    def since(self, i: int, position: int) -> list[int]:
        """Tokens and drafts of the ask from this position on."""
        ask = self.asks[i]
        return [*ask.tokens[position:], *self.tokens[i][max(0, position - len(ask.tokens)) :]]

    def drafts(self) -> list[Draft]:
        """What has come of each ask."""
        return [
            Draft(tokens, self.q[i].q[: len(tokens)] if tokens and i in self.q else None)
            for i, tokens in enumerate(self.tokens)
        ]

    def take_back(self) -> None:
        """The slots are as they were before the first draft."""
        for i, (slot, tokens, (state, updates)) in enumerate(zip(self.slots, self.tokens, self.before, strict=True)):
            for _ in tokens:
                slot.pop()
            slot.state.update(state)
            slot.updates[:] = updates
            if tokens:
                self._moved(i)

    def _moved(self, i: int) -> None:
        """The ask's slot has other tokens than before."""
        self.sampler.slots.advance(self.asks[i].slot, self.slots[i].moves)

    def _way(self, i: int, on_cpu: bool) -> Way:
        """How the ask's drafts are made."""
        if self.asks[i].rule == "exact" or self.slots[i].params.greedy:
            return self._coupled
        served = on_cpu and self.sampler.backend in (None, "cpu") and not self.slots[i].unsupported
        return self._drawn if served else self._drawn_in_torch

    def _rows(self, who: Sequence[int], rows: list[int]) -> Rows:
        """The next positions of those asks, from these rows of logits."""
        asks = [self.asks[who[row]] for row in rows]
        positions = [len(ask.tokens) + len(self.tokens[who[row]]) for row, ask in zip(rows, asks, strict=True)]
        return Rows.plain([ask.slot for ask in asks], rows, positions)

    def _coupled(self, logits: torch.Tensor, who: Sequence[int], rows: list[int]) -> dict[int, int | None]:
        """What the sampler draws of each of these rows."""
        out = self.sampler(logits, self._rows(who, rows))
        return tokens_of(rows, out.token_ids[:, 0], out.status)

    def _drawn(self, logits: torch.Tensor, who: Sequence[int], rows: list[int]) -> dict[int, int | None]:
        """A token of each of these rows' distributions, which are kept."""
        backend = self.sampler.slots.follower("cpu", CPUBackend)
        noise, to = [self._noise(who[row]) for row in rows], [self._room(who[row]) for row in rows]
        out = backend.propose(logits, self._rows(who, rows), noise, to)
        return tokens_of(rows, out.token_ids, out.status)

    def _drawn_in_torch(self, logits: torch.Tensor, who: Sequence[int], rows: list[int]) -> dict[int, int | None]:
        """The same, row by row."""
        found: dict[int, int | None] = dict.fromkeys(rows)
        for row in rows:
            i = who[row]
            with suppress(BadRowError):
                q = proposal(logits[row], self.slots[i])
                place, at = self._room(i)
                place.write(at, q)
                found[row] = draw(q, kernels.uniform(self.slots[i].key, *self._noise(i)))
        return found

    def _room(self, i: int) -> tuple[ProposalBuffer, int]:
        """Where the q of the ask's next draft goes."""
        if i not in self.q:
            self.q[i] = self.buffers.acquire(self.asks[i].count)
        return self.q[i], len(self.tokens[i])

    def _noise(self, i: int) -> tuple[int, int]:
        """Position and stream of what the ask's next draft is drawn with, if it is drawn."""
        return noise_of(len(self.asks[i].tokens), len(self.tokens[i]))


def noise_of(begin: int, step: int) -> tuple[int, int]:
    """Position and stream of the noise of a draft: the `step`-th of a step that begins at position `begin`."""
    return begin, DRAFT_STREAM + step


def tokens_of(rows: list[int], token_ids: torch.Tensor, status: torch.Tensor) -> dict[int, int | None]:
    """Each row's token; None where the row could not be drawn from."""
    drawn = zip(rows, token_ids.tolist(), status.tolist(), strict=True)
    return {row: token if status == OK else None for row, token, status in drawn}


def fitted(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Logits [R, V'] as [R, V]: ids from V on are cut off, those that there are none of get −inf."""
    missing = vocab_size - logits.shape[1]
    return F.pad(logits, (0, missing), value=-math.inf) if missing > 0 else logits[:, :vocab_size]


def proposal(row: torch.Tensor, slot: RequestSlot) -> torch.Tensor:
    """q, float32 [V] on the CPU, in torch, for a row of draft logits [V]: the request's edits, temperature, min-p,
    top-k and top-p, so that q covers about what the target's distribution does. Its other methods are left out: q need
    only be what is drawn from. One-hot where the token is forced.

    Raises:
        BadRowError: the row can't be drawn from, or the request's edits leave nothing of it.
    """
    row = edited(row.float().cpu(), slot)
    if slot.forced is not None:
        return F.one_hot(torch.tensor(slot.forced), row.numel()).float()
    x = (row - row.max()).double().div_(slot.params.temperature)
    return cut(x, slot.params).softmax(0).float()


def cut(x: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Logits [V], less their largest, float64, changed in place: −inf where min-p, top-k or top-p removes them. Equal
    ones at a boundary all stay."""
    least = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if 0 < params.top_k < x.numel():
        least = max(least, float(x.topk(params.top_k, sorted=False).values.min()))
    if least > -math.inf:
        x.masked_fill_(x < least, -math.inf)
    if params.top_p < 1.0:
        p = x.softmax(0)
        # those below can't be in the nucleus, see sampling/methods/top_p.py
        likely = p[p >= 0.5 * (1.0 - params.top_p) / p.numel()].sort(descending=True).values
        inside = int((likely.cumsum(0) - likely < params.top_p).sum())
        x.masked_fill_(p < likely[max(1, inside) - 1], -math.inf)
    return x


def draw(q: torch.Tensor, u: float) -> int:
    """The token of q [V] at u in (0, 1) of its mass; its q is > 0."""
    mass = q.double().cumsum(0)
    # below the whole of it, also where the product is rounded up
    at = min(u * float(mass[-1]), math.nextafter(float(mass[-1]), 0.0))
    return int(torch.searchsorted(mass, at, right=True))
