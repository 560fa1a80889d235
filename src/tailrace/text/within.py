"""Which tokens of a vocabulary hold one of some strings within themselves.

The bytes of all tokens lie in a row, and their places are known by the two bytes that stand there; so a string is looked for only where
its rarest pair is. 3 ms per MB to build; a search looks at some thousand places per string, whatever the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


class Within:
    """Over the bytes of each token id. fold: ASCII letters match either way; strings are then given in lower case."""

    def __init__(self, token_bytes: Sequence[bytes], fold: bool = False) -> None:
        data = b"".join(token_bytes)
        self._data = np.frombuffer(data.lower() if fold else data, dtype=np.uint8)
        lengths = np.fromiter(map(len, token_bytes), dtype=np.int64, count=len(token_bytes))
        self._size = len(token_bytes)
        self._owner = np.repeat(np.arange(len(token_bytes), dtype=np.uint32), lengths)
        self._end = np.repeat(lengths.cumsum().astype(np.uint32), lengths)  # of the token that a byte belongs to
        pairs = self._data.astype(np.uint16)
        pairs[:-1] += pairs[1:] << 8
        self._places = np.argsort(pairs, kind="stable").astype(np.uint32)  # by the pair that begins there
        self._from = np.searchsorted(pairs[self._places], np.arange(65537))

    def held(self, strings: Iterable[bytes]) -> np.ndarray:
        """Which tokens hold one of them, bool [V]."""
        found = np.zeros(self._size, dtype=bool)
        short = np.zeros(256, dtype=bool)  # those of one byte are looked for together
        for string in minimal(strings):
            if len(string) == 1:
                short[string[0]] = True
            else:
                found[self._owner[self._starts(string)]] = True
        if short.any():
            found[self._owner[short[self._data]]] = True
        return found

    def _starts(self, string: bytes) -> np.ndarray:
        """Where a string of two bytes or more begins, so that it ends in the same token."""
        pairs = [string[i] | string[i + 1] << 8 for i in range(len(string) - 1)]
        rarest = min(range(len(pairs)), key=lambda i: self._from[pairs[i] + 1] - self._from[pairs[i]])
        pair = pairs[rarest]
        starts = self._places[self._from[pair] : self._from[pair + 1]].astype(np.int64) - rarest
        starts = starts[starts >= 0]
        starts = starts[starts + len(string) <= self._end[starts]]
        for i, byte in enumerate(string):
            if not starts.size:
                break
            starts = starts[self._data[starts + i] == byte]
        return starts


def minimal(strings: Iterable[bytes]) -> list[bytes]:
    """Those that hold no other of them: whatever holds one of the others holds one of these."""
    kept: list[bytes] = []
    for string in sorted(set(strings), key=len):
        if not any(other in string for other in kept):
            kept.append(string)
    return kept
