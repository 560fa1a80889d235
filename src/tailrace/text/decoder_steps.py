"""The decoders of the tokenizers library as streams.

In the library a decoder maps a list of tokens to a list of texts. Here each element of the list comes in parts. A step
withholds only text that a later part or element may change, such as the beginning of a pattern. Knows nothing of token
ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace.text.utf8 import UNKNOWN, add_byte, decode_utf8
from tailrace.text.vocabulary import ALPHABET, fallback_byte


class ElementPart(NamedTuple):
    """A part of an element. begins: it is the element's first part. ends: it is the last one."""

    text: str
    begins: bool = True
    ends: bool = True


class DecoderStep:
    """One decoder. All attributes hold immutable values, so `copy` makes an independent step.

    - pending: the step withholds text.
    - unfinished: the step withholds the bytes of an incomplete character.
    """

    pending = unfinished = False

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        raise NotImplementedError

    def flush(self) -> Iterator[ElementPart]:
        yield from ()


class Replace(DecoderStep):
    """Replace a string in each element. early: the first withheld character was sent already, because the new string
    begins with the same character."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new, self.kept, self.early = old, new, "", False

    @property
    def pending(self) -> bool:
        return len(self.kept) > self.early

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        *done, tail = (self.kept + part.text).split(self.old)
        size = 0 if part.ends else measure_overlap(tail, self.old)
        text, self.kept = self.new.join([*done, tail[: len(tail) - size]]), tail[len(tail) - size :]
        if text:
            text, self.early = text[self.early :], False
        if self.kept and not self.early and self.kept[0] == self.new[:1]:
            text, self.early = text + self.kept[0], True
        yield part._replace(text=text)


class ReplacePattern(DecoderStep):
    """Replace a regular expression in each element, by the library. The last characters of an incomplete element are
    withheld, because the length of a match is unknown."""

    WAIT = 32

    def __init__(self, replace: Callable[[str], str]) -> None:
        self.replace, self.kept = replace, ""

    @property
    def pending(self) -> bool:
        return bool(self.kept)

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        text = self.kept + part.text
        cut = len(text) if part.ends else self._find_cut(text)
        self.kept = text[cut:]
        yield part._replace(text=self.replace(text[:cut]))

    def _find_cut(self, text: str) -> int:
        """Return the last place, at least WAIT characters before the end, that no match spans. Return 0 if every such
        place is inside a match."""
        whole = self.replace(text)
        places = range(len(text) - self.WAIT, 0, -1)
        return next((at for at in places if self.replace(text[:at]) + self.replace(text[at:]) == whole), 0)


class Strip(DecoderStep):
    """Remove up to `start` copies of a character from the beginning of each element, and up to `stop` from its end."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self.content, self.start, self.stop = content, start, stop
        self.left, self.kept = 0, ""

    @property
    def pending(self) -> bool:
        return bool(self.kept)

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        text = part.text
        if part.begins:
            self.left = self.start
        while self.left and text.startswith(self.content):
            text, self.left = text[1:], self.left - 1
        if text:
            self.left = 0
        text = self.kept + text
        size = min(self.stop, len(text) - len(text.rstrip(self.content)))
        text, self.kept = text[: len(text) - size], "" if part.ends else text[len(text) - size :]
        yield part._replace(text=text)


class Metaspace(DecoderStep):
    """Replace the stand-in for a space by a space. Remove it from the first element if the encoder prepends one."""

    def __init__(self, replacement: str, prepended: bool) -> None:
        self.replacement, self.prepended, self.count = replacement, prepended, 0

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        self.count += part.begins
        yield part._replace(text=part.text.replace(self.replacement, "" if self.count == 1 and self.prepended else " "))


class WordPiece(DecoderStep):
    """Remove the prefix of every element but the first. An element without the prefix gets a space."""

    head: str | None = None  # the start of an element that may have the prefix

    def __init__(self, prefix: str) -> None:
        self.prefix, self.count = prefix, 0

    @property
    def pending(self) -> bool:
        return bool(self.head)

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        self.count += part.begins
        if part.begins and self.count > 1:
            self.head = ""
        if self.head is None:
            yield part
            return
        head = self.head + part.text
        if not part.ends and self.prefix.startswith(head) and head != self.prefix:
            self.head = head
            yield part._replace(text="")
            return
        self.head = None
        yield part._replace(text=head.removeprefix(self.prefix) if head.startswith(self.prefix) else f" {head}")


class LastSuffix(DecoderStep):
    """Replace a suffix by a space, but remove it from the last element (BPEDecoder)."""

    def __init__(self, suffix: str) -> None:
        self.suffix, self.kept, self.open = suffix, "", False

    @property
    def pending(self) -> bool:
        return bool(self.kept)

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        if part.begins and self.open:
            yield ElementPart(self.kept.replace(self.suffix, " "), False)
            self.kept = ""
        text = self.kept + part.text
        at = text.find(self.suffix)
        if at < 0:
            at = len(text) - (0 if part.ends else measure_overlap(text, self.suffix))
        self.kept = text[at:]
        self.open = not part.ends or bool(self.kept)
        yield ElementPart(text[:at], part.begins, not self.open)

    def flush(self) -> Iterator[ElementPart]:
        if self.open:
            kept, self.kept, self.open = self.kept, "", False
            yield ElementPart(kept.replace(self.suffix, ""), False)


class Whole(DecoderStep):
    """Join each element's parts to one part. needed: whether an element with this beginning must wait for the rest.
    Other elements pass in parts."""

    def __init__(self, needed: Callable[[str], bool] = lambda text: True) -> None:
        self.needed, self.text, self.waits = needed, "", True

    @property
    def pending(self) -> bool:
        return bool(self.text)

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        self.waits |= part.begins
        text = self.text + part.text
        if self.waits and not part.ends and self.needed(text):
            self.text = text
            return
        yield ElementPart(text, self.waits, part.ends)
        self.text, self.waits = "", False


class Distinct(DecoderStep):
    """Drop an element that equals the one before it."""

    last: str | None = None

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        if part.text != self.last:
            yield part
        self.last = part.text


class NotEmpty(DecoderStep):
    """Drop empty elements. Elements come whole."""

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        if part.text:
            yield part


class Fuse(DecoderStep):
    """Join all elements to one. between: the text between two elements."""

    def __init__(self, between: str = "") -> None:
        self.between, self.begun = between, False

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        yield ElementPart((self.between if part.begins and self.begun else "") + part.text, not self.begun, False)
        self.begun = True

    def flush(self) -> Iterator[ElementPart]:
        if self.begun:
            yield ElementPart("", False)


class ByteLevel(DecoderStep):
    """Join all elements to one: the text of the bytes that their characters represent."""

    def __init__(self) -> None:
        self.bytes, self.begun = b"", False

    @property
    def unfinished(self) -> bool:
        return bool(self.bytes)

    pending = unfinished

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        known = all(character in ALPHABET for character in part.text)
        data = bytes(ALPHABET[character] for character in part.text) if known else part.text.encode()
        text, self.bytes = decode_utf8(self.bytes + data)
        yield ElementPart(text, not self.begun, False)
        self.begun = True

    def flush(self) -> Iterator[ElementPart]:
        if self.begun:
            data, self.bytes = self.bytes, b""
            yield ElementPart(data.decode(errors="replace"), False)


class ByteFallback(DecoderStep):
    """Join elements like <0x0A> in a row to one: the text of their bytes. Each character comes with its last byte. A
    malformed byte becomes one U+FFFD. (In the library it makes the whole row U+FFFD.)"""

    def __init__(self) -> None:
        self.bytes, self.open = b"", False  # bytes of an incomplete character; whether a row is open

    @property
    def unfinished(self) -> bool:
        return bool(self.bytes)

    pending = unfinished

    def feed(self, part: ElementPart) -> Iterator[ElementPart]:
        byte = fallback_byte(part.text) if part.begins and part.ends else None
        if byte is None:
            if part.begins:
                yield from self.flush()
            yield part
            return
        lost, text, self.bytes = add_byte(self.bytes, byte)
        yield ElementPart(UNKNOWN * lost + text, not self.open, False)
        self.open = True

    def flush(self) -> Iterator[ElementPart]:
        if self.open:
            data, self.bytes, self.open = self.bytes, b"", False
            yield ElementPart(UNKNOWN * len(data), False)


def may_be_byte(text: str) -> bool:
    """Return whether an element that begins with this text may become one like <0x0A>."""
    return len(text) <= len("<0x0A>") and text.startswith("<0x"[: len(text)])


def measure_overlap(text: str, pattern: str) -> int:
    """Return the length of the longest end of the text that is a proper prefix of the pattern."""
    sizes = range(min(len(text), len(pattern) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(pattern[:size])), 0)
