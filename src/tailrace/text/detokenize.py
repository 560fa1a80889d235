"""Token ids → text, one id at a time. `feed` returns complete characters only, `flush` returns the rest.

Law: decode(prompt) plus everything returned equals decode(prompt + output), under any chunking, if the prompt ends at a
whole character. A character that begins in the prompt is returned whole if the output completes it, and not at all
otherwise.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

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


class PieceDetokenizer:
    """SentencePiece with byte fallback. A run of byte tokens is text if all of it is valid UTF-8, and otherwise one
    U+FFFD per byte. So a run is returned only when it has ended. The text's first space is removed if the decoder
    strips it."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt: Sequence[int]) -> None:
        self._token_of = tokenizer.token_of
        self._hidden = hidden
        self._strip = strips_first_space(tokenizer.decoder or {}) and not any(self._shown(prompt))
        run = bytes(leading_bytes(self._shown(prompt)))[::-1]
        if len(run) == LOOK_BACK:  # the run began before LOOK_BACK, perhaps within a character
            run = run.lstrip(CONTINUATIONS)
        self._run = bytearray(run)
        self._in_run: Any = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompts_bytes = len(run)  # of the run
        # characters of the run that belong to the prompt, if the run is text
        self._skip = len(self._in_run.decode(run))
        self._whole = 0  # characters of the run after those, if the run is text
        self._texts = tokenizer.texts
        self.lead = 0
        self.silent = self.unfinished = False

    def plain(self, id: int) -> str | None:
        if self._strip or self._run or id in self._hidden or not 0 <= id < len(self._texts):
            return None
        return self._texts[id]

    def feed(self, id: int) -> str:
        self.lead, self.silent = 0, False
        if id in self._hidden:
            return ""
        token = self._token_of(id).replace(METASPACE, " ")
        byte = fallback_byte(token)
        if byte is not None:
            self.lead, self.unfinished = self._whole, True
            self.silent = self._strip and not self._run and byte == ord(" ")
            self._run.append(byte)
            complete = len(self._in_run.decode(bytes([byte])))
            if self.silent:
                self._skip = complete
            else:
                self._whole += complete
            return ""
        before = self.flush() if self._run else ""
        self.lead = len(before)
        return before + self._first(token)

    def flush(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        self.unfinished = False
        try:
            text = run.decode()[self._skip :]
            self._strip = self._strip and not self._skip
        except UnicodeDecodeError:
            text = UNKNOWN * (len(run) - self._prompts_bytes)
        self._whole = self._prompts_bytes = self._skip = 0
        self._in_run.reset()
        return self._first(text)

    def _shown(self, prompt: Sequence[int]) -> Iterator[str]:
        """The prompt's visible tokens, last one first."""
        return (self._token_of(id) for id in reversed(prompt) if id not in self._hidden)

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

    Two things may change when more tokens come, so they are held back: a final U+FFFD, which may be an incomplete
    character, and a run of byte tokens, if the decoder joins such runs. A window begins after some text, at a token
    where nothing was held back: at the very start of a text a decoder may behave differently.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt: Sequence[int]) -> None:
        self._decode, self._check = tokenizer.backend.decode, tokenizer.check
        self._token_of = tokenizer.token_of
        self._hidden = hidden
        self._joins_bytes = "ByteFallback" in step_names(tokenizer.decoder)
        self._window = self._end_of(prompt)
        self._before = self._text(self._window) or None  # the prompt's text in the window, until output follows it
        self._said = len((self._before or "").rstrip(UNKNOWN))  # characters of the window's text that were returned
        # tokens of the window since nothing was held back, or since the last run of bytes
        self._fresh = len(self._window)
        self.lead = 0
        self.silent = self.unfinished = False

    def plain(self, id: int) -> str | None:
        return None

    def feed(self, id: int) -> str:
        self.lead = 0
        if id in self._hidden:
            return ""
        self._check((id,))
        self._window.append(id)
        self._fresh += 1
        if self._is_byte(id):
            self._fresh, self.unfinished = 0, True  # a window does not begin within a run
            return ""
        before = self._text(self._window[:-1]) if self.unfinished else ""
        text = self._text(self._window)
        self._compare(text)
        if before and text.startswith(before):
            self.lead = max(0, len(before) - self._said)
        self.unfinished = text.endswith(UNKNOWN)
        new = self._new(text, len(text) - self.unfinished)
        if self._before is None and (not self.unfinished or self._fresh > LONGEST_WAIT):
            self._slide()
        return new

    def flush(self) -> str:
        text = self._text(self._window)
        self._compare(text)
        return self._new(text, len(text))

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
        new = text[self._said : end]
        self._said = max(self._said, end)
        if new:
            self._before = None
        return new

    def _slide(self) -> None:
        """Move the start of the window forward, if the rest still contains text."""
        kept = self._window[-min(self._fresh, LONGEST_WAIT) :]
        text = self._text(kept)
        if text:
            self._window, self._said = kept, len(text) - text.endswith(UNKNOWN)
            self._fresh = len(kept) if self.unfinished else 0


LONGEST_CHARACTER = 4  # bytes
CONTINUATIONS = bytes(range(0x80, 0xC0))  # bytes that begin no character
LOOK_BACK = 64  # tokens of a prompt; every sequence of a request reads them
LONGEST_WAIT = 16  # tokens; a character has at most four bytes, so text further back is final
