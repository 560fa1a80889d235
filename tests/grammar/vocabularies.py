"""A vocabulary whose first ids are the bytes themselves."""

from __future__ import annotations

from functools import lru_cache

from tailrace.grammar.vocabulary import Vocabulary

PIECES = (
    b'{"',
    b'":',
    b'", "',
    b'"}',
    b"}}",
    b"tr",
    b"true",
    b"ab",
    b"abc",
    b"10",
    b"00",
    b"\n\n",
    b"  ",
    "é".encode(),
    b"\xa9x",
)
EOS = (300, 302)
SPECIAL = frozenset({*EOS, 301, 303})
PADDED = 330  # rows of logits; no multiple of 32


@lru_cache
def spelled() -> tuple[bytes, ...]:
    """256 bytes, pieces of several, a twin of "a", and from 300 on special tokens, whose names are no text."""
    pieces = [*(bytes([byte]) for byte in range(256)), *PIECES, b"a"]
    pieces += [b""] * (300 - len(pieces))
    return (*pieces, b"<end>", b"a", b"<stop>", b"b")


@lru_cache
def small() -> Vocabulary:
    return Vocabulary.of(None, spelled(), SPECIAL, EOS, PADDED)
