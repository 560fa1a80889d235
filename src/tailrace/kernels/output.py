"""What the kernels of every device leave of a step, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from tailrace._cpu import Survivors

FALLS_BACK = -1  # the status of a request that asks for what the kernels don't have: it is the reference sampler's


class LogprobArrays(NamedTuple):
    """Set where a program asks. numbers: float64 [N, W, 3 + top], logprob, entropy and varentropy in nats, the top
    logprobs.
    ranks: int64 [N, W, 1 + top], rank, the top ids."""

    numbers: torch.Tensor
    ranks: torch.Tensor

    def logprobs(self) -> torch.Tensor:
        """float64 [N, W, 1 + top], the drawn token's and the top ones': those of `ranks`."""
        return torch.cat([self.numbers[:, :, :1], self.numbers[:, :, 3:]], 2)

    @staticmethod
    def empty(shape: tuple[int, int], top: int) -> LogprobArrays:
        """For N requests of W tokens, on the host; contents undefined."""
        return LogprobArrays(
            torch.empty((*shape, 3 + top), dtype=torch.float64), torch.empty((*shape, 1 + top), dtype=torch.int64)
        )


class SamplingMask(NamedTuple):
    """Which ids survived, of each token of a step: compressed sparse rows, as vLLM and SGLang carry them.

    token_ids: int32 [n], one token's behind the other's, each one's ascending. offsets: int64 [N · W + 1]: those of
    token j of request i stand at offsets[i · W + j] … offsets[i · W + j + 1] − 1. None where there is no token, or its
    request did not ask.
    """

    token_ids: torch.Tensor
    offsets: torch.Tensor

    @staticmethod
    def empty(tokens: int) -> SamplingMask:
        """Of so many, none of which has any."""
        return SamplingMask(torch.empty(0, dtype=torch.int32), torch.zeros(tokens + 1, dtype=torch.int64))

    @staticmethod
    def of(survivors: Survivors, tokens: int) -> SamplingMask:
        """What the kernels, or `Survivors.read`, have found of so many."""
        token_ids = torch.empty(survivors.total(), dtype=torch.int32)
        offsets = torch.empty(tokens + 1, dtype=torch.int64)
        survivors.write(token_ids.data_ptr(), offsets.data_ptr())
        return SamplingMask(token_ids, offsets)

    def parts(self) -> list[torch.Tensor]:
        """Those of each token, int32: views."""
        return list(self.token_ids.split(self.offsets.diff().tolist()))

    def packed(self, limit: int) -> list[bytes]:
        """Those of each token as int32, little-endian; b"" where there are none, or more than `limit`."""
        ids, offsets = self.token_ids.numpy().astype("<i4", copy=False), self.offsets.tolist()
        return [ids[low:high].tobytes() if high - low <= limit else b"" for low, high in pairwise(offsets)]

    def replaced(self, parts: Mapping[int, torch.Tensor]) -> SamplingMask:
        """The same with other survivors of some tokens, by place."""
        all_parts = self.parts()
        for place, ids in parts.items():
            all_parts[place] = ids
        sizes = torch.tensor([0, *(part.numel() for part in all_parts)])
        return SamplingMask(torch.cat(all_parts).to(torch.int32), sizes.cumsum(0))


class KernelOutput(NamedTuple):
    """N requests, W tokens at most each.

    token_ids: int64 [N, W], −1 where there is none. num_tokens: int64 [N]. status: int32 [N], kernels/status.py, or
    FALLS_BACK.
    logprobs: if any program asks for some. updates: float64 [N, W], if any program has a state: ln of each token's
    probability among those that the state follows, NaN where it stays as it is. seconds: float64 [N], if a program is
    costly: processor time of its request. sampling_mask: if any program asks for its survivors.
    """

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    logprobs: LogprobArrays | None = None
    updates: torch.Tensor | None = None
    seconds: torch.Tensor | None = None
    sampling_mask: SamplingMask | None = None

    @staticmethod
    def empty(requests: int, width: int) -> KernelOutput:
        """For so many, without reports; contents undefined."""
        return KernelOutput(
            torch.empty((requests, width), dtype=torch.int64),
            torch.empty(requests, dtype=torch.int64),
            torch.empty(requests, dtype=torch.int32),
        )
