"""Numbers of a step on their way to a device: one pinned buffer and one copy for all of them, and nobody waits."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def there(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """x on the device."""
    pinned = x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x
    return pinned.to(device, non_blocking=True)


def together(parts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """All of them there, in one copy."""
    return unpack(there(pack(parts, pinned=device.type == "cuda"), device), parts)


def room(part: torch.Tensor) -> int:
    """Words of 8 bytes that it takes, up to the next multiple of 16 bytes: kernels are compiled anew for less aligned
    addresses."""
    return -(-part.numel() * part.itemsize // 16) * 2


def unpack(words: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of words, int64 [n], where `pack` has put parts of these shapes and dtypes."""
    views, at = [], 0
    for part in parts:
        count, wide = part.numel(), part.dtype == torch.int64
        view = words[at : at + count] if wide else words[at : at + room(part)].view(part.dtype)[:count]
        views.append(view if part.dim() == 1 else view.view(part.shape))
        at += room(part)
    return views


def pack(parts: Sequence[torch.Tensor], pinned: bool) -> torch.Tensor:
    """int64 [n] that holds numbers of 4 or 8 bytes, one part after the other. Pinned memory is not given to another
    before copies from it are done: torch keeps account."""
    words = torch.empty(sum(map(room, parts)), dtype=torch.int64, pin_memory=pinned)
    host, at = words.numpy(), 0  # whose slices cost a fifth of a tensor's
    for part in parts:
        numbers = part.numpy().reshape(-1)
        host[at : at + room(part)].view(numbers.dtype)[: numbers.size] = numbers
        at += room(part)
    return words
