"""The results of a step's kernels as arrays, the same for every device."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from tailrace._cpu import Survivors


class LogprobArrays(NamedTuple):
    """Logprobs of a step's tokens, set where a program reports them.

    - numbers: float64 [N, W, 3 + top], logprob, entropy and varentropy in nats, the top logprobs.
    - ranks: int64 [N, W, 1 + top], rank, the top ids.
    """

    numbers: torch.Tensor
    ranks: torch.Tensor

    def logprobs(self) -> torch.Tensor:
        """Return float64 [N, W, 1 + top]: the logprobs of the drawn token and of the top ones, in the order of
        `ranks`."""
        return torch.cat([self.numbers[:, :, :1], self.numbers[:, :, 3:]], 2)

    @staticmethod
    def empty(shape: tuple[int, int], top: int) -> LogprobArrays:
        """Return arrays for N requests of W tokens, on the host; contents undefined."""
        return LogprobArrays(
            torch.empty((*shape, 3 + top), dtype=torch.float64), torch.empty((*shape, 1 + top), dtype=torch.int64)
        )


class SamplingMask(NamedTuple):
    """The ids that survived for each token of a step, as compressed sparse rows, as in vLLM and SGLang.

    - token_ids: int32 [n], the survivors of one token after the other, each token's ascending.
    - offsets: int64 [N · W + 1]. Those of token j of request i are offsets[i · W + j] … offsets[i · W + j + 1] − 1.

    A token without a place in the output has no survivors, nor has one whose request does not report them.
    """

    token_ids: torch.Tensor
    offsets: torch.Tensor

    @staticmethod
    def empty(tokens: int) -> SamplingMask:
        """Return the mask of this many tokens without survivors."""
        return SamplingMask(torch.empty(0, dtype=torch.int32), torch.zeros(tokens + 1, dtype=torch.int64))

    @staticmethod
    def of(survivors: Survivors, tokens: int) -> SamplingMask:
        """Return the mask of `tokens` tokens from the survivors that the kernels or `Survivors.read` found."""
        token_ids = torch.empty(survivors.total(), dtype=torch.int32)
        offsets = torch.empty(tokens + 1, dtype=torch.int64)
        survivors.write(token_ids.data_ptr(), offsets.data_ptr())
        return SamplingMask(token_ids, offsets)

    def parts(self) -> list[torch.Tensor]:
        """Return the survivors of each token, int32; views."""
        return list(self.token_ids.split(self.offsets.diff().tolist()))

    def to_words(self, words: int) -> torch.Tensor:
        """Return int32 [N · W, words], 32 ids in a word, as the GPU's kernels write them."""
        flags = np.zeros((len(self.offsets) - 1, words * 32), dtype=bool)
        flags[np.repeat(np.arange(len(flags)), self.offsets.diff()), self.token_ids] = True
        return torch.from_numpy(np.packbits(flags, axis=1, bitorder="little")).view(torch.int32)

    def packed(self, limit: int) -> list[bytes]:
        """Return the survivors of each token as int32, little-endian; b"" if they are more than `limit`."""
        ids, offsets = self.token_ids.numpy().astype("<i4", copy=False), self.offsets.tolist()
        return [ids[low:high].tobytes() if high - low <= limit else b"" for low, high in pairwise(offsets)]

    def replaced(self, parts: Mapping[int, torch.Tensor]) -> SamplingMask:
        """Return the mask with other survivors for some tokens. parts: place of the token → its survivors."""
        all_parts = self.parts()
        for place, ids in parts.items():
            all_parts[place] = ids
        sizes = torch.tensor([0, *(part.numel() for part in all_parts)])
        return SamplingMask(torch.cat(all_parts).to(torch.int32), sizes.cumsum(0))


class KernelOutput(NamedTuple):
    """The results for N requests of at most W tokens each.

    - token_ids: int64 [N, W], −1 beyond the tokens. num_tokens: int64 [N].
    - status: int32 [N], a code of kernels/status.py, or FALLS_BACK.
    - logprobs: set if any program reports some.
    - updates: float64 [N, W], set if any program has a state. ln of each token's probability among those that the state
      follows; NaN if the state stays as it is.
    - seconds: float64 [N], processor time of each request, set if a program is costly.
    - sampling_mask: set if any program reports its survivors.
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
        """Return output without reports for this many requests; contents undefined."""
        return KernelOutput(
            torch.empty((requests, width), dtype=torch.int64),
            torch.empty(requests, dtype=torch.int64),
            torch.empty(requests, dtype=torch.int32),
        )
