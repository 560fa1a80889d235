"""The options of one layer's attention: what `kernels.paged_attention` takes besides tensors and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The options of `kernels.paged_attention`, under the names of its parameters.

    Raises:
        ValueError: window or chunk is negative.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    chunk: int = 0
    sinks: torch.Tensor | None = None
    batch_invariant: bool = False
    selected: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("window", "chunk"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    def check_sinks(self, heads: int, device: torch.device) -> torch.Tensor | None:
        """Return the sinks as the kernels read them, or None.

        Raises:
            ValueError: they are not float32 [heads], contiguous, on this device.
        """
        sinks = self.sinks
        if sinks is None:
            return None
        if sinks.shape != (heads,) or sinks.dtype != torch.float32 or sinks.device != device or sinks.stride(0) != 1:
            raise ValueError(
                f"sinks must be contiguous torch.float32 [{heads}] on {device}, got {sinks.dtype} "
                f"{list(sinks.shape)} on {sinks.device}"
            )
        return sinks

    def check_selected(self, tokens: int, heads: int, device: torch.device) -> torch.Tensor | None:
        """Return the bits of selected positions as the kernels read them, or None.

        Raises:
            ValueError: they are not int64 [tokens, 1 or heads, W], contiguous, on this device.
        """
        bits = self.selected
        if bits is None:
            return None
        fits = bits.dim() == 3 and bits.shape[0] == tokens and bits.shape[1] in (1, heads)
        if not fits or bits.dtype != torch.int64 or bits.device != device or not bits.is_contiguous():
            raise ValueError(
                f"selected must be contiguous torch.int64 [{tokens}, 1 or {heads}, W] on {device}, got {bits.dtype} "
                f"{list(bits.shape)} on {bits.device}"
            )
        return bits
