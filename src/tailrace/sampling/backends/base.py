"""The interface of a backend: one object that follows the slots and samples their rows.

Requests that need more than the backend's kernels fall back to the reference sampler (backends/reference.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from tailrace.base.logprobs import TokenLogprobs
from tailrace.errors import ParameterError
from tailrace.kernels.output import LogprobArrays, SamplingMask
from tailrace.kernels.proposals import ProposalMemory, Proposed
from tailrace.kernels.rows import Rows
from tailrace.sampling.slot import Slot
from tailrace.sampling.slots import SlotObserver, Slots

Memory = TypeVar("Memory", bound=ProposalMemory)
RequestLogprobs = list[list[TokenLogprobs] | None]


@dataclass(slots=True)
class Sampled:
    """The tokens of a step.

    - token_ids: int64 [N, K + 1], padded with −1.
    - num_tokens: int64 [N], 0 if status is not OK.
    - status: int32 [N], see kernels/status.py.
    - logprob_arrays: undefined for requests without logprobs.
    - make_logprobs: creates `logprobs` at the first read; None if no request needs logprobs.
    - sampling_mask: per token the ids that could be drawn; None if no request needs them.
    """

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    logprob_arrays: LogprobArrays | None = None
    make_logprobs: Callable[[], RequestLogprobs] | None = None
    sampling_mask: SamplingMask | None = None
    _logprobs: RequestLogprobs | None = None

    @property
    def logprobs(self) -> RequestLogprobs:
        """Per request one entry per token; None for a request without logprobs."""
        made = self._logprobs
        if made is None:
            nobody: RequestLogprobs = [None] * len(self.num_tokens)
            made = self._logprobs = nobody if self.make_logprobs is None else self.make_logprobs()
        return made

    def tokens(self) -> list[list[int]]:
        """Return the drawn or accepted tokens per request, as `Slots.commit` takes them. A request whose status is not
        OK has an empty list."""
        return [row[:count] for row, count in zip(self.token_ids.tolist(), self.num_tokens.tolist(), strict=True)]


class Pending:
    """Draws whose results are not on the host yet.

    token_ids and logprob_arrays are those of `Sampled`, on the device of the logits. Kernels that are launched next can
    read them. survivors: int32 [N, W, ⌈V / 32⌉], a bit per id, if the device has written the sampling masks.
    """

    def __init__(
        self,
        token_ids: torch.Tensor,
        finish: Callable[[], Sampled],
        logprob_arrays: LogprobArrays | None = None,
        survivors: torch.Tensor | None = None,
    ) -> None:
        self.token_ids, self.logprob_arrays, self.survivors = token_ids, logprob_arrays, survivors
        self._finish = finish
        self._sampled: Sampled | None = None

    def wait(self) -> Sampled:
        """Wait until the results are on the host, and return them."""
        if self._sampled is None:
            self._sampled = self._finish()
        return self._sampled

    def flag_survivors(self, size: int) -> torch.Tensor:
        """Return bool [N, W, size]: whether each id could be drawn, on the device of the logits. Nothing waits for a
        GPU. All are False for a request that reports no sampling mask."""
        bits = self.survivors
        if bits is None:
            words, shape = -(-size // 32), self.token_ids.shape
            mask = self.wait().sampling_mask or SamplingMask.empty(shape.numel())
            bits = mask.to_words(words).view(*shape, words).to(self.token_ids.device)
        places = torch.arange(8, dtype=torch.uint8, device=bits.device)
        return (bits.view(torch.uint8)[..., None] >> places & 1).bool().flatten(2)[:, :, :size]

    def padded_logprobs(self, asked: Sequence[int | None], top: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `logprob_arrays` for engines whose arrays have one width for all requests. Nothing waits for the
        device.

        Args:
            asked: each request's number of alternatives; None for a request without logprobs.
            top: number of alternatives in the returned arrays.

        Returns:
            int64 [N, W, 1 + top], rank and top ids, and float64 [N, W, 1 + top], logprobs in nats, on the device of the
            logits. Entries that a request did not ask for, or that have no token, are 0.
        """
        shown = self.token_ids.new_zeros(*self.token_ids.shape, 1 + top)
        values = shown.new_zeros(shown.shape, dtype=torch.float64)
        if (arrays := self.logprob_arrays) is not None:
            width = min(arrays.ranks.shape[2], 1 + top)
            counts = torch.tensor([-1 if count is None else count for count in asked])
            places = (torch.arange(width) <= counts[:, None]).to(shown.device, non_blocking=True)
            wanted = (self.token_ids >= 0)[:, :, None] & places[:, None]
            shown[:, :, :width] = arrays.ranks[:, :, :width].where(wanted, 0)
            values[:, :, :width] = arrays.logprobs()[:, :, :width].where(wanted, 0.0)
        return shown, values


class Backend(SlotObserver, Protocol):
    """A sampler for the slots of one `Slots`, which reports changes to it (`SlotObserver`: add, edit, advance,
    remove)."""

    def sample(self, logits: torch.Tensor, rows: Rows) -> Pending:
        """Sample the rows.

        Args:
            logits: [L, V], readable by this backend and not modified.
            rows: with positions.

        Raises:
            ParameterError: the dtype differs, a slot is empty, or a number of `rows` is out of range.
        """
        ...

    def refine(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return the refined rows, as `Sampler.refine` does."""
        ...

    def warm_up(self, dtypes: set[torch.dtype]) -> None:
        """Prepare for logits of these dtypes."""
        ...


class DraftingBackend(Backend, Protocol[Memory]):
    """A backend that also draws drafts, and keeps the distribution q of each draft."""

    def serves_drafts(self, slot: int) -> bool:
        """Return whether the backend can draw the slot's drafts."""
        ...

    def proposal_memory(self, count: int) -> Memory:
        """Return memory for `count` distributions q."""
        ...

    def propose(
        self,
        logits: torch.Tensor,
        rows: Rows,
        noise: Sequence[tuple[int, int]],
        to: Sequence[tuple[Memory, int]],
    ) -> Proposed:
        """Draw a draft for each row. Return the drafts, on the host, and their q.

        Args:
            noise: position and stream of each row's noise, whose key is the slot's. The row's own position is the one
                that its methods see.
            to: for each row the memory for its q, and the row in that memory.

        Raises:
            ParameterError: see `sample`.
        """
        ...


def drafted_requests(slots: Slots, rows: Rows) -> list[tuple[int, Slot]]:
    """Return the requests with drafts, and their slots.

    Raises:
        ParameterError: two requests of a slot with a history have drafts, so they can't be verified together.
    """
    if rows.width == 1:
        return []
    owners = rows.owners.tolist()
    drafted = [(i, slots[owners[i]]) for i in (rows.start.diff() > 1).nonzero().squeeze(1).tolist()]
    counts = Counter(owners)
    for i, slot in drafted:
        if counts[owners[i]] > 1 and slot.history is not None:
            raise ParameterError(
                f"slot {owners[i]} has {counts[owners[i]]} requests with drafts in one step, and a history that "
                f"they share",
                "slot",
            )
    return drafted
