"""The tokens that end an output under a grammar, and where: EOS and stop ids, only where the grammar may end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tailrace.params import SamplingParams


class TokenBits(NamedTuple):
    """The bits of some tokens in a mask, uint32 [⌈V / 32⌉]: the words that hold the bits, and the bits."""

    words: np.ndarray
    bits: np.ndarray

    @staticmethod
    def of(tokens: Iterable[int]) -> TokenBits:
        """Return the bits of these tokens."""
        ids = np.array(sorted(tokens), dtype=np.int64)
        return TokenBits(ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))

    def set_bits(self, row: np.ndarray) -> None:
        """Allow the tokens in a mask."""
        np.bitwise_or.at(row, self.words, self.bits)

    def clear(self, row: np.ndarray) -> None:
        """Forbid the tokens in a mask."""
        np.bitwise_and.at(row, self.words, ~self.bits)

    def has_allowed_token(self, row: np.ndarray) -> bool:
        """Return whether a mask allows one of the tokens."""
        return bool((row[self.words] & self.bits).any())


@dataclass(frozen=True, slots=True)
class Enders:
    """The tokens that may end the output.

    - eos: of the model.
    - stops: the request's stop ids. Where the grammar may not end, a stop id counts as text if the grammar allows it.
    - silent: EOS, and the stop ids that are no text.
    """

    eos: frozenset[int]
    stops: frozenset[int]
    silent: frozenset[int]
    min_tokens: int
    ignore_eos: bool
    eos_bits: TokenBits
    stop_bits: TokenBits
    silent_bits: TokenBits

    @staticmethod
    def of(params: SamplingParams, eos: Iterable[int], special: frozenset[int]) -> Enders:
        """Return the enders of a request. special: ids that are no text."""
        ends, stops = frozenset(eos), frozenset(params.stop_token_ids)
        silent = ends | (stops & special)
        bits = (TokenBits.of(tokens) for tokens in (ends, stops, silent))
        return Enders(ends, stops, silent, params.min_tokens, params.ignore_eos, *bits)

    def end(self, token: int, num_output: int) -> bool:
        """Return whether the token ends the output where the grammar may end. num_output: tokens before it."""
        return token in self.eos or (token in self.stops and num_output >= self.min_tokens)

    def complete(self, rows: np.ndarray, num_output: int) -> None:
        """Change a grammar's masks: allow stop ids where the grammar may end. Before min_tokens no ender is allowed,
        and with ignore_eos no EOS, unless the grammar allows nothing else.

        Args:
            rows: uint32 [rows, ⌈V / 32⌉], where EOS is allowed if, and only if, the grammar may end. num_output: tokens
                before the first row.
        """
        for index, row in enumerate(rows, start=num_output):
            if not self.eos_bits.has_allowed_token(row):
                continue
            early = index < self.min_tokens
            if early or self.ignore_eos:
                self.eos_bits.clear(row)
                if not row.any():
                    self.eos_bits.set_bits(row)
            if not early:
                self.stop_bits.set_bits(row)
