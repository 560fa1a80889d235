"""What tokens spell, where they are drawn."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


class TokenText:
    """One sequence's text as its tokens' bytes spell it; the same that the front end's detokenizer gives in byte-level vocabularies.

    Args:
        hidden: ids that leave no text.
    """

    def __init__(self, spelling: Spelling, hidden: frozenset[int] = frozenset()) -> None:
        self._bytes, self._hidden = spelling.token_bytes, hidden
        self._decoder: Any = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """One more token → the characters that it completes."""
        if token in self._hidden or token >= len(self._bytes):
            return ""
        return self._decoder.decode(self._bytes[token])
