"""What tokens spell, where they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tailrace.text.detokenize import detokenizer
from tailrace.text.token_search import TokenSearch
from tailrace.text.utf8 import decoded

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenBytes:
    """token_bytes: what each token id spells. special: ids that may be left out of the text. reader: (ids that leave no
    text, prompt) → a function that takes the tokens behind the prompt one by one, and gives the text that each
    completes, as the front end has it; None: nobody knows that."""

    token_bytes: Sequence[bytes] = ()
    special: frozenset[int] = frozenset()
    reader: Callable[[frozenset[int], Sequence[int]], Callable[[int], str]] | None = None

    @cached_property
    def _within(self) -> dict[bool, TokenSearch]:
        return {}

    def within(self, fold: bool) -> TokenSearch:
        """What finds the tokens that hold a string; made when it is first asked for."""
        if fold not in self._within:
            self._within[fold] = TokenSearch(self.token_bytes, fold)
        return self._within[fold]

    @staticmethod
    def of(tokenizer: Tokenizer, vocab_size: int) -> TokenBytes:
        """Of a model's tokenizer."""
        table = [tokenizer.bytes_of(token) for token in range(vocab_size)]
        return TokenBytes(
            table, tokenizer.special_ids, lambda hidden, prompt: detokenizer(tokenizer, hidden, prompt).feed
        )


class TokenText:
    """One sequence's text as its tokens' bytes spell it; the same that the front end's detokenizer gives in byte-level
    vocabularies, but for a character that begins in the prompt.

    Args:
        hidden: ids that leave no text.
    """

    def __init__(self, token_bytes: TokenBytes, hidden: frozenset[int] = frozenset()) -> None:
        self._bytes, self._hidden = token_bytes.token_bytes, hidden
        self._begun = b""  # of a character

    def push(self, token: int) -> str:
        """One more token → the characters that it completes."""
        if token in self._hidden or token >= len(self._bytes):
            return ""
        text, self._begun = decoded(self._begun + self._bytes[token])
        return text
