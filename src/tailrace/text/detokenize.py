"""Token ids → text, one id at a time. `feed` returns complete characters only, `flush` returns the rest.

Law: decode(prompt) plus everything returned equals decode(prompt + output), under any chunking, if the prompt ends at a
whole character. A character that begins in the prompt is returned whole if the output completes it, and not at all
otherwise. One exception: characters in byte tokens come out at once, though malformed bytes may follow (see ByteRun).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from tailrace.text.decoder import feed_steps, flush_steps, make_steps, peek_steps
from tailrace.text.decoder_steps import ElementPart
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.utf8 import UNKNOWN, add_byte, decode_utf8, may_continue
from tailrace.text.vocabulary import METASPACE, fallback_byte, strips_first_space


class Detokenizer(Protocol):
    """Turns ids into text.

    - feed: returns the text that this id completes.
    - flush: returns the rest, at the end.
    - plain: the same as feed, if nothing is pending and the id's text does not depend on its neighbours. It changes no
      state. Otherwise None.
    - lead: number of characters of the last feed's text that come before the last id's own.
    - silent: the last id is the text's first space, which is stripped.
    - unfinished: the text ends within a character.
    """

    lead: int
    silent: bool
    unfinished: bool

    def plain(self, id: int) -> str | None: ...
    def feed(self, id: int) -> str: ...
    def flush(self) -> str: ...


def detokenizer(tokenizer: Tokenizer, hidden: frozenset[int] = frozenset(), prompt: Sequence[int] = ()) -> Detokenizer:
    """Return a new detokenizer of the tokenizer's kind. hidden: ids that leave no text. prompt: the ids before the
    output."""
    return {"bytes": ByteDetokenizer, "pieces": PieceDetokenizer, "library": LibraryDetokenizer}[tokenizer.kind](
        tokenizer, hidden, prompt[-LOOK_BACK:]
    )


class ByteDetokenizer:
    """Detokenizer of byte-level vocabularies: a table from id to bytes and a UTF-8 state machine. Each maximal invalid
    part becomes one U+FFFD, as in the Unicode standard (chapter 3.9) and in the library's decode."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt: Sequence[int]) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._hidden = hidden
        self._texts = tokenizer.texts
        # bytes of an incomplete character
        self._begun = find_incomplete_bytes(self._bytes_of(id) for id in reversed(prompt) if id not in hidden)
        # an incomplete character begins in the prompt
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
            if data and not may_continue(self._begun, data[:1]):
                self.lead = 1
            data = self._begun + data
        text, self._begun = decode_utf8(data)
        self.unfinished = bool(self._begun)
        return self._strip_prompt_text(text) if self._in_prompts else text

    def flush(self) -> str:
        begun, self._begun, self.unfinished = self._begun, b"", False
        text = begun.decode(errors="replace")
        return self._strip_prompt_text(text) if self._in_prompts else text

    def _strip_prompt_text(self, text: str) -> str:
        """Remove a leading U+FFFD that is already in the prompt's text."""
        self._in_prompts = not text
        self.lead = 0
        return text.removeprefix(UNKNOWN)


def find_incomplete_bytes(backwards: Iterable[bytes]) -> bytes:
    """Return the bytes of an incomplete character at the end of a text. backwards: the text's parts, last one first."""
    end = b""
    for part in backwards:
        end = part + end
        if len(end) >= LONGEST_CHARACTER:
            break
    return decode_utf8(end)[1]


class ByteRun:
    """The characters of a run of byte tokens. Each character comes out with its last byte. Each malformed byte becomes
    one U+FFFD as soon as it is known to be malformed.

    In the library one malformed byte makes a whole run of byte tokens U+FFFD. Here the other characters stay.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        """prompt: the bytes of the run at the prompt's end, last one first."""
        self.begun = find_incomplete_bytes(bytes([byte]) for byte in prompt)  # the bytes of an incomplete character
        self._in_prompts = len(self.begun)  # how many of them are already U+FFFD in the prompt's text

    def feed(self, byte: int) -> tuple[str, str]:
        """Return the text for bytes that this byte makes malformed, and the character that the byte completes. An
        unrelated byte is a character of its own."""
        lost, text, begun = add_byte(self.begun, byte)
        broken = self.flush() if lost else ""
        self.begun = begun
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
        before = self._strip_first_space(before)
        own = self._strip_first_space(text)
        self.lead, self.silent = len(before), byte is not None and own != text
        return before + own

    def flush(self) -> str:
        self.unfinished = False
        return self._strip_first_space(self._run.flush())

    def _strip_first_space(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def leading_bytes(tokens: Iterable[str]) -> Iterator[int]:
    """Yield the bytes of the leading byte tokens."""
    for token in tokens:
        byte = fallback_byte(token)
        if byte is None:
            return
        yield byte


class LibraryDetokenizer:
    """Any other tokenizer: the library's decoder, step by step (text/decoder.py)."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt: Sequence[int]) -> None:
        self._steps = make_steps(tokenizer.decoder)
        self._spelling, self._check = tokenizer.backend.id_to_token, tokenizer.check
        self._hidden = hidden
        for id in prompt:
            if id not in hidden:
                self._feed_token(id)
        self._in_prompts = peek_steps(self._steps)  # already in the prompt's text
        self.lead = 0
        self.silent = False
        self.unfinished = any(step.unfinished for step in self._steps)

    def plain(self, id: int) -> str | None:
        return None

    def feed(self, id: int) -> str:
        self.lead = 0
        if id in self._hidden:
            return ""
        self._check((id,))
        before = peek_steps(self._steps)
        whole = self._feed_token(id)
        text = self._strip_prompt_text(whole)
        if whole.startswith(before):
            self.lead = max(0, len(before) - (len(whole) - len(text)))
        self.unfinished = any(step.unfinished for step in self._steps)
        return text

    def flush(self) -> str:
        self.unfinished = False
        return self._strip_prompt_text(flush_steps(self._steps))

    def _feed_token(self, id: int) -> str:
        token = self._spelling(id)
        return "" if token is None else feed_steps(self._steps, [ElementPart(token)])

    def _strip_prompt_text(self, text: str) -> str:
        """Remove the beginning that is already in the prompt's text."""
        if not text or not self._in_prompts:
            return text
        pairs = zip(self._in_prompts, text, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self._in_prompts), len(text)))
        self._in_prompts = self._in_prompts[same:] if same == len(text) else ""
        return text[same:]


LONGEST_CHARACTER = 4  # bytes
LOOK_BACK = 64  # tokens of a prompt, which every sequence of a request reads
