"""Booleans as the bits of words: how attention kernels read which positions are selected."""

from __future__ import annotations

import torch

WORD = 64  # bits


def pack_bits(flags: torch.Tensor) -> torch.Tensor:
    """Pack bool [..., P] into int64 [..., W]: bit j of word w is flag 64 w + j. Flags behind P are False.

    >>> pack_bits(torch.tensor([True, False, True]))
    tensor([5])
    """
    words = -(-flags.shape[-1] // WORD)
    whole = flags.new_zeros((*flags.shape[:-1], WORD * words), dtype=torch.uint8)
    whole[..., : flags.shape[-1]] = flags
    each = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=flags.device)
    return (whole.unflatten(-1, (-1, 8)) * each).sum(-1, dtype=torch.uint8).view(torch.int64)


def unpack_bits(words: torch.Tensor) -> torch.Tensor:
    """Return the flags of pack_bits, bool [..., 64 W].

    >>> unpack_bits(torch.tensor([5]))[:4]
    tensor([ True, False,  True, False])
    """
    at = torch.arange(WORD, device=words.device)
    return (words[..., None] >> at & 1).bool().flatten(-2)
