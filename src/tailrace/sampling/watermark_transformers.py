"""The choices of transformers' watermarks, bit for bit, so that its detectors recognise the text:
WatermarkLogitsProcessor with seeding_scheme "lefthash", and SynthIDTextWatermarkLogitsProcessor; both on the CPU, whose
generator gives other numbers than a GPU's (their detectors must be given device="cpu").

Against ours (sampling/watermark.py) they are weaker: the green list of a token follows from that one token, whatever
`context` says (it only says from where on text is marked), and from the lowest 32 bits of key · token, which is all
that torch's CPU generator is seeded with; SynthID's bits come from a table of 65,536. They are here for those who have
their detectors. Not here: "selfhash", which shuffles the vocabulary forty times for each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch

from tailrace.request.options import Watermark

MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1)
# green lists, and tables: a common token's list is asked for again and again, and takes a shuffle of the vocabulary
KEPT = 64
ID_S = 5e-8  # that an id takes in a shuffle, and in an edit of what is green


def green_list(mark: Watermark, context: Sequence[int], vocab_size: int) -> np.ndarray:
    """The ids that get the bias after this context: uint32, ascending; ⌊γ V⌋ of them."""
    assert mark.key is not None
    return green_after(mark.key, mark.gamma, int(context[-1]), vocab_size)


@lru_cache(maxsize=KEPT)
def green_after(key: int, gamma: float, token: int, vocab_size: int) -> np.ndarray:
    """The beginning of a random permutation, seeded with key · token."""
    generator = torch.Generator().manual_seed(key * token % (2**64 - 1))
    green = np.zeros(vocab_size, dtype=bool)
    green[torch.randperm(vocab_size, generator=generator)[: int(vocab_size * gamma)].numpy()] = True
    return green.nonzero()[0].astype(np.uint32)


def list_s(mark: Watermark | None, vocab_size: int) -> float:
    """Of processor time, about, that a token takes whose green list is not kept; 0 where none is made here."""
    theirs = mark is not None and mark.kind == "kgw" and mark.scheme == "transformers"
    return ID_S * vocab_size if theirs else 0.0


def g_values(mark: Watermark, context: Sequence[int], ids: torch.Tensor) -> list[torch.Tensor]:
    """One layer's bits per entry: float64 [n] of 0 and 1."""
    table = sampling_table(mark.sampling_table_size, mark.sampling_table_seed)
    ngrams = accumulate_hash(np.ones(ids.numel(), dtype=np.uint64), [*context, ids.numpy()])
    places = (accumulate_hash(ngrams, [key]).view(np.int64) % mark.sampling_table_size for key in mark.keys)
    return [table[torch.from_numpy(place)].double() for place in places]


def accumulate_hash(value: np.ndarray, data: Iterable[int | np.ndarray]) -> np.ndarray:
    """value ← (value + d) · MULTIPLIER + 1 for each d, modulo 2^64."""
    for each in data:
        value = (value + np.asarray(each, dtype=np.int64).astype(np.uint64)) * MULTIPLIER + INCREMENT
    return value


@lru_cache(maxsize=KEPT)
def sampling_table(size: int, seed: int) -> torch.Tensor:
    """uint8 [size] of 0 and 1: 256 KiB at most, so all that are kept take at most 16 MiB."""
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
