"""The bytes of tokens, for the code that draws them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import TailraceError
from tailrace.text.detokenize import detokenizer
from tailrace.text.token_search import TokenSearch
from tailrace.text.utf8 import decode_utf8

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of a model's tokens.

    - token_bytes: the bytes of each token id.
    - special: ids that may be left out of the text.
    - reader: (ids that leave no text, prompt) → a function that takes the tokens after the prompt one by one, and
      returns the text that each completes, as the front end does. None: this is unknown.
    """

    token_bytes: Sequence[bytes] = ()
    special: frozenset[int] = frozenset()
    reader: Callable[[frozenset[int], Sequence[int]], Callable[[int], str]] | None = None

    @cached_property
    def _within(self) -> dict[bool, TokenSearch]:
        return {}

    def within(self, fold: bool) -> TokenSearch:
        """Return the search for tokens that contain a string. The first call makes it."""
        if fold not in self._within:
            self._within[fold] = TokenSearch(self.token_bytes, fold)
        return self._within[fold]

    @cached_property
    def _beyond(self) -> dict[bytes, dict[int, np.ndarray]]:
        return {}

    def get_token_bytes(self, token: int) -> bytes:
        """Return the token's bytes; none beyond the tokenizer's vocabulary."""
        return self.token_bytes[token] if token < len(self.token_bytes) else b""

    def beyond(self, marker: bytes) -> dict[int, np.ndarray]:
        """Return masks without the tokens that complete the marker and contain more text.

        The key is the number of the marker's bytes so far; a mask is uint32 [⌈V / 32⌉]. Numbers without such tokens are
        left out. The first call for a marker takes 20 ms for 150,000 tokens.
        """
        if marker not in self._beyond:
            last = marker[-1:]
            going = [(token, data) for token, data in enumerate(self.token_bytes) if last in data[:-1]]
            masks: dict[int, np.ndarray] = {}
            for begun in range(len(marker)):
                rest = marker[begun:]
                found = [token for token, data in going if goes_beyond(data, rest, anywhere=not begun)]
                if found:
                    allowed = np.ones(-(-len(self.token_bytes) // 32) * 32, dtype=bool)
                    allowed[found] = False
                    masks[begun] = np.packbits(allowed, bitorder="little").view(np.uint32)
            self._beyond[marker] = masks
        return self._beyond[marker]

    @staticmethod
    def of(tokenizer: Tokenizer, vocab_size: int) -> TokenBytes:
        """Return the bytes of a tokenizer's tokens."""
        table = [tokenizer.bytes_of(token) for token in range(vocab_size)]
        return TokenBytes(
            table, tokenizer.special_ids, lambda hidden, prompt: detokenizer(tokenizer, hidden, prompt).feed
        )


def goes_beyond(data: bytes, rest: bytes, anywhere: bool) -> bool:
    """Return whether a token begins with the rest of a marker and contains more. anywhere: the rest may come within the
    token."""
    at = data.find(rest) if anywhere else 0 if data.startswith(rest) else -1
    return at >= 0 and at + len(rest) < len(data)


class TokenText:
    """One sequence's text as its tokens' bytes spell it. In byte-level vocabularies it equals that of the front end's
    detokenizer, except for a character that begins in the prompt.

    Args:
        hidden: ids that leave no text.
    """

    def __init__(self, token_bytes: TokenBytes, hidden: frozenset[int] = frozenset()) -> None:
        self._bytes, self._hidden = token_bytes.token_bytes, hidden
        self._begun = b""  # of a character

    def push(self, token: int) -> str:
        """Add a token. Return the characters that it completes."""
        if token in self._hidden or token >= len(self._bytes):
            return ""
        text, self._begun = decode_utf8(self._begun + self._bytes[token])
        return text


def token_bytes_of(folder: Path, trust_remote_code: bool, vocab_size: int) -> TokenBytes:
    """Return the bytes of each token id; nothing for a model without a tokenizer."""
    from tailrace.text.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.load(folder, trust_remote_code, limits=None)
    except TailraceError as error:
        log.info("strings can't be banned: %s", error)
        return TokenBytes()
    return TokenBytes.of(tokenizer, vocab_size)
