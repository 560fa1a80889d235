"""The convolutions along a block that DFlash2 puts around the attention and the MLP of each layer.

A convolution has a few taps: the output at a place is a sum over this place and the ones just before it in the block.
Its coefficients are fixed ones for each channel, plus ones for each group of channels that are computed from the input
at the place. One projection of the part's input gives the coefficients for its input and for its output.
"""

from __future__ import annotations

import torch

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.layer import pack_projections
from tailrace.errors import ModelLoadError

MAX_TAPS = 64


class BlockConvolution:
    """The convolutions around one part of a layer. Symbols: n rows, whole blocks one after the other; H hidden size.

    Tensors: base_kernel [2, taps, H], for input and output; kernel_projection.weight [2 · taps · groups, H].

    Args:
        prefix: of the tensors' names, with the dot.
        sizes: the number of taps, and of channels in a group.
        width, block: H, and the tokens of a block.

    Raises:
        ModelLoadError: a tensor is missing or has another shape.
    """

    def __init__(self, checkpoint: Checkpoint, prefix: str, sizes: tuple[int, int], width: int, block: int) -> None:
        (self.taps, group), self.block = sizes, block
        self.groups = width // group
        self.base = checkpoint.take(f"{prefix}base_kernel", 2, self.taps, width).unflatten(-1, (self.groups, group))
        rows = 2 * self.taps * self.groups
        self.projection = pack_projections(checkpoint, width, (f"{prefix}kernel_projection", rows))

    def prepare(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Convolve the part's input [n, H]. Return it, and what `finish` needs."""
        computed = kernels.linear(x, self.projection).unflatten(-1, (2, self.taps, self.groups))
        return self._convolve(x, computed[:, 0], 0), computed[:, 1]

    def finish(self, x: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """Convolve the part's output [n, H]."""
        return self._convolve(x, computed, 1)

    def _convolve(self, x: torch.Tensor, computed: torch.Tensor, side: int) -> torch.Tensor:
        """Return the sums over the taps. computed: [n, taps, groups]."""
        coefficients = (self.base[side] + computed[..., None]).unflatten(0, (-1, self.block))
        channels = x.unflatten(-1, (self.groups, -1)).unflatten(0, (-1, self.block))
        out = coefficients[:, :, 0] * channels
        for tap in range(1, min(self.taps, self.block)):
            out[:, tap:] += coefficients[:, tap:, tap] * channels[:, :-tap]
        return out.flatten(2).flatten(0, 1)


def read_sizes(checkpoint: Checkpoint, section: str, width: int) -> tuple[int, int] | None:
    """Return the numbers of taps and of channels in a group; None without convolutions.

    Raises:
        ModelLoadError: one of the numbers is missing or out of range.
    """
    names = ("conv_kernel_size", "conv_group_size")
    if not any(checkpoint.value(name, section) for name in names):
        return None
    taps = checkpoint.number(names[0], section, 1, MAX_TAPS)
    group = checkpoint.number(names[1], section, 1, width)
    if width % group:
        raise ModelLoadError(f"{checkpoint.folder}: conv_group_size must divide hidden_size, {width}, got {group}")
    return taps, group
