"""Incremental UTF-8 decoding as in the Unicode standard (chapter 3.9).

Each maximal malformed part becomes one U+FFFD as soon as it is known to be malformed. Python's own decoder holds back
the first two bytes of a surrogate as if they could become a character.
"""

from __future__ import annotations

import codecs
import re

UNKNOWN = "\ufffd"
# the first byte of a surrogate, and the smallest second byte
SURROGATES, FIRST_OF_THEM = 0xED, 0xA0
HALVES = re.compile("[\ud800-\udfff]")


def decode_utf8(data: bytes, final: bool = False) -> tuple[str, bytes]:
    """Return the characters of the data, and the bytes of an incomplete character at its end. If `final`, these bytes
    are malformed."""
    text, used = codecs.utf_8_decode(data, "replace", final)
    rest = data[used:]
    if len(rest) == 2 and rest[0] == SURROGATES and rest[1] >= FIRST_OF_THEM:
        return text + 2 * UNKNOWN, b""
    return text, rest


def may_continue(begun: bytes, byte: bytes) -> bool:
    """Return whether the byte may come next in the incomplete character. Otherwise the incomplete character is one
    malformed part."""
    if not begun:
        return True
    if begun[0] == SURROGATES and len(begun) == 1 and byte >= bytes((FIRST_OF_THEM,)):
        return False
    try:
        codecs.utf_8_decode(begun + byte, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def add_byte(begun: bytes, byte: int) -> tuple[int, str, bytes]:
    """Add a byte to an incomplete character. Return three results:

    - the number of earlier bytes that are now malformed;
    - the character that the byte completes, or "";
    - the bytes that are still incomplete.
    """
    data = bytes([byte])
    lost = 0 if may_continue(begun, data) else len(begun)
    return lost, *decode_utf8(begun[lost:] + data)


def decode_complete(data: bytes) -> str | None:
    """Return the bytes as text; None if they are not whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def without_halves(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair, which JSON can write and UTF-8 can't. Two matching
    halves become one character, as in JSON."""
    if text.isascii() or not HALVES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
