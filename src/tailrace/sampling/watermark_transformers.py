"""The choices of transformers' watermarks, bit for bit, so that its detectors recognise the text.

They are those of WatermarkLogitsProcessor with seeding_scheme "lefthash", and of SynthIDTextWatermarkLogitsProcessor.
Both are the choices on a CPU, whose random generator differs from a GPU's. So their detectors must be given
device="cpu".

They are weaker than the own scheme (sampling/watermark.py). A token's green list depends on that one token, whatever
`context` is (it only sets where the marked text begins). Only the lowest 32 bits of key · token matter, because torch's
CPU generator uses no others. SynthID's bits come from a table of 65,536. This module exists for users of transformers'
detectors. It lacks "selfhash", which shuffles the vocabulary forty times for each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch

from tailrace.request.options import Watermark

MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1)
# Number of cached green lists and tables. Common tokens recur, and each list takes a shuffle of the vocabulary.
KEPT = 64
ID_S = 5e-8  # seconds per id for the shuffle and for the edit of green ids


def green_list(mark: Watermark, context: Sequence[int], vocab_size: int) -> np.ndarray:
    """Return the ids that get the bias after this context: uint32, ascending; ⌊γ V⌋ of them."""
    assert mark.key is not None
    return green_after(mark.key, mark.gamma, int(context[-1]), vocab_size)


@lru_cache(maxsize=KEPT)
def green_after(key: int, gamma: float, token: int, vocab_size: int) -> np.ndarray:
    """Return the beginning of a random permutation, seeded with key · token."""
    generator = torch.Generator().manual_seed(key * token % (2**64 - 1))
    green = np.zeros(vocab_size, dtype=bool)
    green[torch.randperm(vocab_size, generator=generator)[: int(vocab_size * gamma)].numpy()] = True
    return green.nonzero()[0].astype(np.uint32)


def list_s(mark: Watermark | None, vocab_size: int) -> float:
    """Return the approximate processor time of a token whose green list is not cached, in seconds. It is 0 if the
    watermark has no such lists."""
    theirs = mark is not None and mark.kind == "kgw" and mark.scheme == "transformers"
    return ID_S * vocab_size if theirs else 0.0


def g_values(mark: Watermark, context: Sequence[int], ids: torch.Tensor) -> list[torch.Tensor]:
    """Return each layer's bits per entry: float64 [n] of 0 and 1."""
    table = sampling_table(mark.sampling_table_size, mark.sampling_table_seed)
    ngrams = accumulate_hash(np.ones(ids.numel(), dtype=np.uint64), [*context, ids.numpy()])
    places = (accumulate_hash(ngrams, [key]).view(np.int64) % mark.sampling_table_size for key in mark.keys)
    return [table[torch.from_numpy(place)].double() for place in places]


def accumulate_hash(value: np.ndarray, data: Iterable[int | np.ndarray]) -> np.ndarray:
    """Compute value ← (value + d) · MULTIPLIER + 1 for each d, modulo 2^64."""
    for each in data:
        value = (value + np.asarray(each, dtype=np.int64).astype(np.uint64)) * MULTIPLIER + INCREMENT
    return value


@lru_cache(maxsize=KEPT)
def sampling_table(size: int, seed: int) -> torch.Tensor:
    """Return uint8 [size] of 0 and 1. A table has at most 256 KiB, so all cached tables have at most 16 MiB."""
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
