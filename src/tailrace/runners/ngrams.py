"""Layers that see the last tokens of their sequence, such as Qwen4-exp's embeddings of n-grams, in a flat batch.

transformers keeps the tokens in its cache. Here the methods that see them read the states of the sequences
(runners/states.py). The rest of a module's own code runs unchanged. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from tailrace import kernels
from tailrace.runners.states import RecurrentLayer


@dataclass(frozen=True, slots=True)
class TokensBefore:
    """The token ids before each token. State: the distances of the last ids from the end-of-text id in float32, which
    holds ids below 2²⁴ exactly. So zeros, the state at position 0, are end-of-text ids, as in transformers."""

    layer: RecurrentLayer
    module: Any

    def __call__(self, token_ids: torch.Tensor, shift: int) -> torch.Tensor:
        """Return the ids `shift` tokens before, or the end-of-text id if the text ends in between.

        token_ids: [1, context + T]. The context is that of a single sequence: it is not read.
        """
        if not shift or self.layer.shared.walk is None:
            if shift:
                self.layer.note(f"tokens {shift}", (shift, shift), torch.float32)
            return type(self.module)._shift_right_ignore_eos(self.module, token_ids, shift)
        end, context = self.module.eos_token_id, self.module.context_len
        ids = (token_ids[0, context:] - end).float()[:, None].expand(-1, shift).contiguous()
        taps = F.pad(torch.eye(shift, device=ids.device).flip(0), (0, 1))  # row j: the token j + 1 before
        before = kernels.convolve(kernels.Convolution(ids, taps), *self.layer.find_states(f"tokens {shift}"))
        found = torch.where((before != 0).all(-1), before[:, -1], 0.0).long() + end
        return F.pad(found, (context, 0), value=end)[None]


@dataclass(frozen=True, slots=True)
class DilatedConvolution:
    """A causal convolution whose taps are `dilation` tokens apart, with SiLU. State: the inputs before."""

    layer: RecurrentLayer
    module: Any
    taps: torch.Tensor

    def __call__(self, hidden_states: torch.Tensor, cache: Any = None) -> torch.Tensor:
        """Return the convolution of [1, T, C]."""
        if self.layer.shared.walk is None:
            channels, width = self.taps.shape
            self.layer.note("dilated convolution", (width - 1, channels), self.taps.dtype)
            return type(self.module)._short_conv(self.module, hidden_states, cache)
        given = kernels.Convolution(hidden_states[0].contiguous(), self.taps, silu=True)
        return kernels.convolve(given, *self.layer.find_states("dilated convolution"))[None]


def spread_taps(layer: RecurrentLayer, module: Any) -> DilatedConvolution:
    """Return the convolution of a module, with zeros between the taps."""
    weight, (step,) = module.conv1d.weight.detach()[:, 0], module.conv1d.dilation
    taps = torch.zeros(len(weight), (weight.shape[1] - 1) * step + 1, dtype=weight.dtype, device=weight.device)
    taps[:, ::step] = weight
    return DilatedConvolution(layer, module, taps)


# The method in transformers → what makes ours, of the layer and its module.
METHODS: dict[str, Callable[[RecurrentLayer, Any], Callable[..., torch.Tensor]]] = {
    "_shift_right_ignore_eos": TokensBefore,
    "_short_conv": spread_taps,
}
