"""UTF-8 piece by piece, as the Unicode standard has it (chapter 3.9): one U+FFFD for each maximal part of what is malformed, as soon as it
is known to be. Python's own decoder keeps the first two bytes of a surrogate as if a character could come of them."""

from __future__ import annotations

import codecs

UNKNOWN = "\ufffd"
SURROGATES, FIRST_OF_THEM = 0xED, 0xA0  # the byte they begin with, and the first that may follow there


def decoded(data: bytes, final: bool = False) -> tuple[str, bytes]:
    """Its characters, and the bytes at its end of one that is not complete; none if it is `final`."""
    text, used = codecs.utf_8_decode(data, "replace", final)
    rest = data[used:]
    if len(rest) == 2 and rest[0] == SURROGATES and rest[1] >= FIRST_OF_THEM:
        return text + 2 * UNKNOWN, b""
    return text, rest


def continues(begun: bytes, byte: bytes) -> bool:
    """The byte may come next in the character that has begun, or none has; else what has begun is one malformed part."""
    if not begun:
        return True
    if begun[0] == SURROGATES and len(begun) == 1 and byte >= bytes((FIRST_OF_THEM,)):
        return False
    try:
        codecs.utf_8_decode(begun + byte, "strict", False)
    except UnicodeDecodeError:
        return False
    return True
