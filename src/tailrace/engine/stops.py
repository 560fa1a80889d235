"""Stop strings where tokens are drawn, so that a sequence ends in the very step that completes one.

The front end's matcher (text/stops.py) has the last word: it cuts text, ids and logprobs. This one only ends the sequence, and only
where its answer is surely the same: it walks the tokens' own bytes, which are the text in byte-level vocabularies. Elsewhere the front
end finds the stop and aborts; the tokens drawn until then are counted as wasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.params import SamplingParams
from tailrace.text.stops import compiled

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Spelling:
    """token_bytes: what each token id spells. special: ids that may be left out of the text. exact: the bytes of tokens in a row are
    the bytes of their text."""

    token_bytes: Sequence[bytes] = ()
    special: frozenset[int] = frozenset()
    exact: bool = False

    @staticmethod
    def of(tokenizer: Tokenizer, vocab_size: int) -> Spelling:
        """Of a model's tokenizer."""
        table = [tokenizer.bytes_of(token) for token in range(vocab_size)]
        return Spelling(table, tokenizer.special_ids, tokenizer.kind == "bytes")


class StopText:
    """One sequence's search."""

    def __init__(self, params: SamplingParams, spelling: Spelling) -> None:
        self._automaton = compiled(params.stop)
        self._bytes = spelling.token_bytes
        self._hidden = spelling.special if params.skip_special_tokens else frozenset()
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._state = 0

    def push(self, token: int) -> bool:
        """One more token. True if a stop string is complete with it, beyond min_tokens."""
        self._num_tokens += 1
        if token in self._hidden or token >= len(self._bytes):
            return False
        data, automaton = self._bytes[token], self._automaton
        if self._state == 0 and automaton.may_start is not None and not automaton.may_start(data):
            return False
        for byte in data:
            self._state = automaton.advance(self._state, byte)
            if automaton.found[self._state] is not None and self._num_tokens > self._min_tokens:
                return True
        return False
