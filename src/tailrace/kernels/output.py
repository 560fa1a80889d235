"""What the kernels of every device leave of a step, as arrays."""

from __future__ import annotations

from typing import NamedTuple

import torch

FALLS_BACK = -1  # the status of a request that asks for what the kernels don't have: it is the reference sampler's


class LogprobArrays(NamedTuple):
    """Set where a program asks. numbers: float64 [N, W, 3 + top], logprob, entropy and varentropy in nats, the top
    logprobs.
    ranks: int64 [N, W, 1 + top], rank, the top ids."""

    numbers: torch.Tensor
    ranks: torch.Tensor


class KernelOutput(NamedTuple):
    """N requests, W tokens at most each.

    token_ids: int64 [N, W], −1 where there is none. num_tokens: int64 [N]. status: int32 [N], kernels/status.py, or
    FALLS_BACK.
    logprobs: if any program asks for some. updates: float64 [N, W], if any program has a state: ln of each token's
    probability among those that the state follows, NaN where it stays as it is. seconds: float64 [N], if a program is
    costly: processor time of its request.
    """

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    logprobs: LogprobArrays | None = None
    updates: torch.Tensor | None = None
    seconds: torch.Tensor | None = None

    @staticmethod
    def empty(requests: int, width: int) -> KernelOutput:
        """For so many, without reports; contents undefined."""
        return KernelOutput(
            torch.empty((requests, width), dtype=torch.int64),
            torch.empty(requests, dtype=torch.int64),
            torch.empty(requests, dtype=torch.int32),
        )
