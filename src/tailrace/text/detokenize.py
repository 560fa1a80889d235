"""Token ids → text, one id at a time. `feed` returns complete characters only, `flush` returns the rest.

Law: decode(prompt) plus everything returned equals decode(prompt + output), under any chunking, if the prompt ends at a
whole character. A character that begins in the prompt is returned whole if the output completes it, and not at all
otherwise. One exception: characters in byte tokens come out at once, though malformed bytes may follow (see ByteRun).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from tailrace.text.tokenizer import Tokenizer
from tailrace.text.utf8 import UNKNOWN, continues, decoded
from tailrace.text.vocabulary import METASPACE, fallback_byte, step_names, strips_first_space


class Detokenizer(Protocol):
    """Turns ids into text.

    feed: the text that this id completes. flush: the rest, at the end. plain: the same as feed if nothing is pending
    and the id's text does not depend on its neighbours (no state changes), else None.
    lead: how many characters of the last feed's text come before the last id's own. silent: the last id is the text's
    first space, which is stripped. unfinished: the text ends within a character.
    """

    lead: int
    silent: bool
    unfinished: bool

    def plain(self, id: int) -> str | None: ...
    def feed(self, id: int) -> str: ...
    def flush(self) -> str: ...


def detokenizer(tokenizer: Tokenizer, hidden: frozenset[int] = frozenset(), prompt: Sequence[int] = ()) -> Detokenizer:
    """A new detokenizer of the tokenizer's kind. hidden: ids that leave no text. prompt: the ids before the output."""
    return {"bytes": ByteDetokenizer, "pieces": PieceDetokenizer, "library": LibraryDetokenizer}[tokenizer.kind](
        tokenizer, hidden, prompt[-LOOK_BACK:]
    )


class ByteDetokenizer:
    """Byte-level vocabularies: a table from id to bytes and a UTF-8 state machine. Malformed bytes become U+FFFD, one
    per maximal invalid part, as in the Unicode standard (chapter 3.9) and in the library's decode."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt: Sequence[int]) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._hidden = hidden
        self._texts = tokenizer.texts
        # bytes of an incomplete character
        self._begun = unfinished(self._bytes_of(id) for id in reversed(prompt) if id not in hidden)
        # the incomplete character begins in the prompt; there is one
        self._in_prompts = self.unfinished = bool(self._begun)
        self.silent = False
        self.lead = 0

    def plain(self, id: int) -> str | None:
        if self.unfinished or id in self._hidden or not 0 <= id < len(self._texts):
            return None
        return self._texts[id]

    def feed(self, id: int) -> str:
        self.lead = 0
        if id in self._hidden:
            return ""
        data = self._bytes_of(id)
        if self.unfinished:
            if data and not continues(self._begun, data[:1]):
                self.lead = 1
            data = self._begun + data
        text, self._begun = decoded(data)
        self.unfinished = bool(self._begun)
        return self._own(text) if self._in_prompts else text

    def flush(self) -> str:
        begun, self._begun, self.unfinished = self._begun, b"", False
        text = begun.decode(errors="replace")
        return self._own(text) if self._in_prompts else text

    def _own(self, text: str) -> str:
        """Remove a leading U+FFFD that the prompt's text has already."""
        self._in_prompts = not text
        self.lead = 0
        return text.removeprefix(UNKNOWN)


def unfinished(backwards: Iterable[bytes]) -> bytes:
    """The bytes of an incomplete character at the end of a text. backwards: the text's parts, last one first."""
    end = b""
    for part in backwards:
        end = part + end
        if len(end) >= LONGEST_CHARACTER:
            break
    return decoded(end)[1]


class ByteRun:
    """Characters that come in byte tokens. Each comes out with its last byte. Malformed bytes become one U+FFFD each,
    as soon as they are known to be malformed.

    In the library one malformed byte makes a whole run of byte tokens U+FFFD. Here the other characters stay.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        """prompt: the bytes of the run at its end, last one first."""
        self.begun = unfinished(bytes([byte]) for byte in prompt)  # the bytes of an incomplete character
        self._in_prompts = len(self.begun)  # of these bytes, those that the prompt's text has as U+FFFD

    def feed(self, byte: int) -> tuple[str, str]:
        """What was malformed before this byte, and the character that the byte completes (or is no part of)."""
        data = bytes([byte])
        broken = "" if continues(self.begun, data) else self.flush()
        text, self.begun = decoded(self.begun + data)
        if not self.begun:
            self._in_prompts = 0
        return broken, text

    def flush(self) -> str:  # the run is over
        lost, self.begun, self._in_prompts = len(self.begun) - self._in_prompts, b"", 0
        return UNKNOWN * lost


class PieceDetokenizer:
    """SentencePiece with byte fallback. The text's first space is removed if the decoder strips it."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt: Sequence[int]) -> None:
        self._token_of = tokenizer.token_of
        self._hidden = hidden
        shown = [self._token_of(id) for id in reversed(prompt) if id not in hidden]
        self._strip = strips_first_space(tokenizer.decoder or {}) and not any(shown)
        self._run = ByteRun(leading_bytes(shown))
        self._texts = tokenizer.texts
        self.lead = 0
        self.silent = False
        self.unfinished = bool(self._run.begun)

    def plain(self, id: int) -> str | None:
        if self._strip or self.unfinished or id in self._hidden or not 0 <= id < len(self._texts):
            return None
        return self._texts[id]

    def feed(self, id: int) -> str:
        self.lead, self.silent = 0, False
        if id in self._hidden:
            return ""
        token = self._token_of(id).replace(METASPACE, " ")
        byte = fallback_byte(token)
        if byte is None:
            before, text = self._run.flush(), token
        else:
            before, text = self._run.feed(byte)
        self.unfinished = bool(self._run.begun)
        before = self._first(before)
        own = self._first(text)
        self.lead, self.silent = len(before), byte is not None and own != text
        return before + own

    def flush(self) -> str:
        self.unfinished = False
        return self._first(self._run.flush())

    def _first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def leading_bytes(tokens: Iterable[str]) -> Iterator[int]:
    """The bytes of the leading byte tokens."""
    for token in tokens:
        byte = fallback_byte(token)
        if byte is None:
            return
        yield byte


class LibraryDetokenizer:
    """Any other tokenizer. The library decodes a window of the last tokens; the text that it gains with the newest
    token is returned.

    A final U+FFFD may be an incomplete character, so it is held back. A window begins after some text, at a token where
    nothing was held back: at the very start of a text a decoder may behave differently. If the decoder joins byte
    tokens, the window has none of them, except at the start of a text: each character of such tokens is decoded behind
    the window by itself.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt: Sequence[int]) -> None:
        self._decode, self._check = tokenizer.backend.decode, tokenizer.check
        self._token_of = tokenizer.token_of
        self._hidden = hidden
        self._joins_bytes = "ByteFallback" in step_names(tokenizer.decoder)
        self._window = self._end_of(prompt)
        self._run = ByteRun(leading_bytes(map(self._token_of, reversed(self._window))) if self._joins_bytes else ())
        whole = len(self._window) - len(self._run.begun)
        self._window, self._run_ids = self._window[:whole], self._window[whole:]
        self._before = self._text(self._window) or None  # the prompt's text in the window, until output follows it
        self._said = len((self._before or "").rstrip(UNKNOWN))  # characters of the window's text that were returned
        self._fresh = len(self._window)  # tokens of the window since nothing was held back
        self.lead = 0
        self.silent = False
        self.unfinished = bool(self._run_ids)

    def plain(self, id: int) -> str | None:
        return None

    def feed(self, id: int) -> str:
        self.lead = 0
        if id in self._hidden:
            return ""
        self._check((id,))
        byte = fallback_byte(self._token_of(id)) if self._joins_bytes else None
        if byte is not None:
            return self._feed_byte(id, byte)
        if broken := self._run.flush():
            self._keep(self._run_ids)
        self._run_ids = []
        self._window.append(id)
        self._fresh += 1
        before = self._text(self._window[:-1]) if self.unfinished and not self._joins_bytes else ""
        text = self._text(self._window)
        self._compare(text)
        if before and text.startswith(before):
            self.lead = max(0, len(before) - self._said)
        self.lead += len(broken)
        self.unfinished = not self._joins_bytes and text.endswith(UNKNOWN)
        new = self._new(text, len(text) - self.unfinished)
        if self._before is None and (not self.unfinished or self._fresh > LONGEST_WAIT):
            self._slide()
        return broken + new

    def flush(self) -> str:
        broken = self._run.flush()
        text = self._text(self._window)
        self._compare(text)
        return self._new(text, len(text)) + broken

    def _feed_byte(self, id: int, byte: int) -> str:
        broken, text = self._run.feed(byte)
        self.lead, self.unfinished = len(broken), bool(self._run.begun)
        if broken:
            self._keep(self._run_ids)
            self._run_ids = []
        ids = [*self._run_ids, id][-len(self._run.begun or text.encode()) :]
        self._run_ids = ids if self.unfinished else []
        if self.unfinished:
            return broken
        # behind the window, unless the library would join them to other bytes there
        if text != UNKNOWN and not (self._window and self._is_byte(self._window[-1])):
            text = self._text(self._window + ids)[len(self._text(self._window)) :]
        self._keep(ids)
        return broken + text

    def _keep(self, ids: list[int]) -> None:
        """At the start of a text byte tokens stay in the window, so that what follows does not stand at the start."""
        if not self._text(self._window):
            self._window += ids
            self._said, self._fresh = len(self._text(self._window)), 0

    def _text(self, ids: list[int]) -> str:
        return self._decode(ids, skip_special_tokens=False)

    def _end_of(self, prompt: Sequence[int]) -> list[int]:
        """The prompt's last tokens. They include some text and do not begin within a run of bytes."""
        size = LONGEST_WAIT
        while True:
            last = list(islice((id for id in reversed(prompt) if id not in self._hidden), size))[::-1]
            if len(last) < size or (not self._is_byte(last[0]) and self._text(last)):
                return last
            size *= 2

    def _is_byte(self, id: int) -> bool:
        return self._joins_bytes and fallback_byte(self._token_of(id)) is not None

    def _compare(self, text: str) -> None:
        """While nothing was returned: compare with the prompt's text, whose end the output may have completed."""
        if self._before is not None:
            pairs = zip(self._before, text, strict=False)
            self._said = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self._before), len(text)))

    def _new(self, text: str, end: int) -> str:
        new, self._said = text[self._said : end], max(self._said, end)
        if new:
            self._before = None
        return new

    def _slide(self) -> None:
        """Move the start of the window forward, if the rest still contains text."""
        kept = self._window[-min(self._fresh, LONGEST_WAIT) :]
        text = self._text(kept)
        if text:
            self._window, self._said = kept, len(text) - (text.endswith(UNKNOWN) and not self._joins_bytes)
            self._fresh = len(kept) if self.unfinished else 0


LONGEST_CHARACTER = 4  # bytes
LOOK_BACK = 64  # tokens of a prompt; every sequence of a request reads them
LONGEST_WAIT = 16  # tokens; a character has at most four bytes, so text further back is final
