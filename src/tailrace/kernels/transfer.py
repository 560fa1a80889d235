"""Transfer of a step's numbers to a device: one pinned buffer and one copy for all of them, without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def there(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return x on the device."""
    pinned = x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x
    return pinned.to(device, non_blocking=True)


def together(parts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return all parts on the device, by one copy."""
    return unpack(there(pack(parts, pinned=device.type == "cuda"), device), parts)


def room(part: torch.Tensor) -> int:
    """Return the number of 8-byte words for a part, up to the next multiple of 16 bytes.

    Triton compiles kernels anew for less aligned addresses.
    """
    return -(-part.numel() * part.itemsize // 16) * 2


def unpack(words: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of words, int64 [n], at which `pack` has put parts of these shapes and dtypes."""
    views, at = [], 0
    for part in parts:
        count, wide = part.numel(), part.dtype == torch.int64
        view = words[at : at + count] if wide else words[at : at + room(part)].view(part.dtype)[:count]
        views.append(view if part.dim() == 1 else view.view(part.shape))
        at += room(part)
    return views


def pack(parts: Sequence[torch.Tensor], pinned: bool) -> torch.Tensor:
    """Return int64 [n] that holds the parts, numbers of 4 or 8 bytes, one after the other.

    torch does not reuse pinned memory before the copies from it are done.
    """
    words = torch.empty(sum(map(room, parts)), dtype=torch.int64, pin_memory=pinned)
    host, at = words.numpy(), 0  # slices of an array cost a fifth of a tensor's
    for part in parts:
        numbers = part.numpy().reshape(-1)
        host[at : at + room(part)].view(numbers.dtype)[: numbers.size] = numbers
        at += room(part)
    return words
