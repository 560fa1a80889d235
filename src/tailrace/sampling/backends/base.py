"""What a backend is: one object that follows the slots and samples their rows. What it does not have falls back to the
reference sampler, request by request (backends/reference.py).
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

    token_ids: int64 [N, K + 1], −1 where there is none. num_tokens: int64 [N], 0 where status is not OK. status: int32
    [N], kernels/status.py. logprob_arrays: where a request asked; undefined for requests that did not. make_logprobs:
    makes `logprobs` when they are first read; None: nobody asked. sampling_mask: the ids that survived, by token; None:
    nobody asked.
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
        """Per request one entry per token, or None where it did not ask."""
        made = self._logprobs
        if made is None:
            nobody: RequestLogprobs = [None] * len(self.num_tokens)
            made = self._logprobs = nobody if self.make_logprobs is None else self.make_logprobs()
        return made

    def tokens(self) -> list[list[int]]:
        """What was drawn or accepted, request by request: what `Slots.commit` takes. Nothing where status is not OK."""
        return [row[:count] for row, count in zip(self.token_ids.tolist(), self.num_tokens.tolist(), strict=True)]


class Pending:
    """Draws on their way to the host.

    token_ids, logprob_arrays: as `Sampled` has them, where the logits are, for whatever is launched there next.
    """

    def __init__(
        self, token_ids: torch.Tensor, finish: Callable[[], Sampled], logprob_arrays: LogprobArrays | None = None
    ) -> None:
        self.token_ids, self.logprob_arrays = token_ids, logprob_arrays
        self._finish = finish
        self._sampled: Sampled | None = None

    def wait(self) -> Sampled:
        """Until they are there."""
        if self._sampled is None:
            self._sampled = self._finish()
        return self._sampled

    def padded_logprobs(self, asked: Sequence[int | None], top: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`logprob_arrays` for engines whose arrays have one width for all requests.

        Args:
            asked: of each request its number of alternatives; None: it asks for nothing. top: of the arrays.

        Returns:
            int64 [N, W, 1 + top], rank and top ids, and float64 [N, W, 1 + top], logprobs in nats: 0 where a request
            did not ask for so many, or has no token. Where the logits are; nothing waits.
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
    """Samples for the slots of one `Slots`, and is told of what changes in them (`SlotObserver`: add, edit, advance,
    remove)."""

    def sample(self, logits: torch.Tensor, rows: Rows) -> Pending:
        """logits [L, V], readable by this backend and not modified; rows with positions.

        Raises:
            ParameterError: the dtype differs, a slot is empty, or a number of `rows` is out of range.
        """
        ...

    def warm_up(self, dtypes: set[torch.dtype]) -> None:
        """Be ready for logits of these dtypes."""
        ...


class DraftingBackend(Backend, Protocol[Memory]):
    """A backend that draws drafts too, and keeps what each was drawn from."""

    def serves_drafts(self, slot: int) -> bool:
        """Whether the slot's drafts can be drawn."""
        ...

    def proposal_memory(self, count: int) -> Memory:
        """Room for so many q."""
        ...

    def propose(
        self,
        logits: torch.Tensor,
        rows: Rows,
        noise: Sequence[tuple[int, int]],
        to: Sequence[tuple[Memory, int]],
    ) -> Proposed:
        """A draft of each row, on the host, and its q.

        Args:
            noise: of each row, its position and stream; with its slot's key. The row's own position is what its methods
                see.
            to: of each row, the memory and the row there that its q goes to.

        Raises:
            ParameterError: see `sample`.
        """
        ...


def drafted_requests(slots: Slots, rows: Rows) -> list[tuple[int, Slot]]:
    """The requests with drafts, and their slots.

    Raises:
        ParameterError: there are drafts that can't be verified together.
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
