"""The keyed choices of the watermarks, and their detectors.

In transformers' scheme the choices are those of watermark_transformers.py. Otherwise both watermarks derive their bits
from Philox with the watermark's own key: counter = (token id, layer, hash of the context). A detector needs the key and
the token ids, but no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from tailrace import kernels
from tailrace.errors import ParameterError
from tailrace.request.options import Watermark
from tailrace.sampling import watermark_transformers
from tailrace.sampling.validation import check_kind, checked_ids, checked_size

MASK = 2**64 - 1


def context_hash(tokens: Sequence[int]) -> int:
    """Return 63 bits of the tokens in their order (FNV-1a on 64-bit words, then one SplitMix64 round)."""
    value = 0xCBF29CE484222325
    for token in tokens:
        value = (value ^ (token + 1)) * 0x100000001B3 & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return (value ^ value >> 31) >> 1


def keyed_text(mark: Watermark, tokens: list[int], num_prompt: int) -> list[int]:
    """Return the text that contexts are taken from: prompt and output. In transformers' scheme it is the output alone,
    after zeros."""
    return tokens if mark.scheme == "tailrace" else [0] * mark.context + tokens[num_prompt:]


def hash_words(mark: Watermark, context: Sequence[int], ids: torch.Tensor, layer: int) -> torch.Tensor:
    """Return 32 random bits per id, int64 [n]."""
    assert mark.key is not None
    return kernels.words(mark.key, context_hash(context), layer, ids)


def green_list(mark: Watermark, context: Sequence[int], vocab_size: int) -> np.ndarray:
    """Return the ids that get the bias after this context: uint32, ascending. Each id is in with probability gamma."""
    if mark.scheme == "transformers":
        return watermark_transformers.green_list(mark, context, vocab_size)
    green = hash_words(mark, context, torch.arange(vocab_size), 0) < int(mark.gamma * 2**32)
    return green.nonzero().squeeze(1).numpy().astype(np.uint32)


def g_values(mark: Watermark, context: Sequence[int], ids: torch.Tensor) -> list[torch.Tensor]:
    """Return each layer's bits per entry: float64 [n] of 0 and 1."""
    if mark.scheme == "transformers":
        return watermark_transformers.g_values(mark, context, ids)
    drawn = [hash_words(mark, context, ids, 1 + block) for block in range(-(-mark.depth // 32))]
    return [torch.bitwise_and(drawn[layer // 32] >> layer % 32, 1).double() for layer in range(mark.depth)]


def is_green(mark: Watermark, context: Sequence[int], token: int, vocab_size: int | None) -> bool:
    """Return whether the token is in the green list after this context."""
    if mark.scheme == "transformers":
        if vocab_size is None:
            raise ParameterError("vocab_size must be given: transformers' green lists depend on it", "vocab_size")
        return bool(np.isin(token, watermark_transformers.green_list(mark, context, vocab_size)))
    return int(hash_words(mark, context, torch.tensor([token]), 0)[0]) < int(mark.gamma * 2**32)


def detect(mark: Watermark, tokens: Sequence[int], vocab_size: int | None = None) -> float:
    """Return by how many standard deviations the text exceeds an unmarked one. 4 and more is evidence (p < 4e-5).

    Repeated (context, token) pairs count once, as both papers advise. For synthid only the first token after each
    context counts, because the others were left unmarked.

    Args:
        tokens: ids of the text, at least context + 1. The prompt may be included; it dilutes the score.
        vocab_size: of the model's logits. Only green lists in transformers' scheme need it.

    Raises:
        ParameterError: (a ValueError) too few tokens, no ids, or no vocab_size.
    """
    check_kind("mark", mark, Watermark)
    tokens = checked_ids("tokens", tokens, 2**32)
    vocab_size = None if vocab_size is None else checked_size("vocab_size", vocab_size, 1, 2**24)
    in_order = [(tuple(tokens[i - mark.context : i]), tokens[i]) for i in range(mark.context, len(tokens))]
    pairs = set(in_order)
    if mark.kind == "synthid":
        pairs = set({context: (context, token) for context, token in reversed(in_order)}.values())
    if not pairs:
        raise ParameterError(f"tokens: at least {mark.context + 1} tokens are needed, got {len(tokens)}", "tokens")
    if mark.kind == "kgw":
        green = sum(is_green(mark, context, token, vocab_size) for context, token in pairs)
        return (green - mark.gamma * len(pairs)) / math.sqrt(len(pairs) * mark.gamma * (1.0 - mark.gamma))
    # Weighted mean of the bits. Earlier layers weigh more: the layers before them used up less entropy.
    weights = np.linspace(10.0, 1.0, len(mark.keys) or mark.depth)
    weights /= weights.sum()
    total = sum(
        float(weight * g[0])
        for context, token in pairs
        for weight, g in zip(weights, g_values(mark, context, torch.tensor([token])), strict=True)
    )
    return (total - 0.5 * len(pairs)) / math.sqrt(len(pairs) * 0.25 * float((weights**2).sum()))
