"""Token ids → text, one id at a time: only complete characters come out, `flush` gives the rest.

Law: the concatenation of everything that comes out equals the tokenizer's decode of all ids, under any chunking. Text is that of the
output alone; a prompt's unfinished character is not completed here.
"""

from __future__ import annotations

import codecs
from typing import Any, Protocol

import tokenizers
from tokenizers.decoders import DecodeStream

from tailrace.text.tokenizer import Tokenizer
from tailrace.text.vocabulary import METASPACE, fallback_byte, strips_first_space


class Detokenizer(Protocol):
    """feed returns the text that this id completes; flush what is left, at the end. plain: the same as feed, where nothing is pending and
    the id is text by itself, without any change of state; else None."""

    def plain(self, id: int) -> str | None: ...
    def feed(self, id: int) -> str: ...
    def flush(self) -> str: ...


def detokenizer(tokenizer: Tokenizer, hidden: frozenset[int] = frozenset()) -> Detokenizer:
    """A fresh one for this kind of tokenizer. hidden: ids that leave no text."""
    return {"bytes": ByteDetokenizer, "pieces": PieceDetokenizer, "library": LibraryDetokenizer}[tokenizer.kind](
        tokenizer, hidden
    )


class ByteDetokenizer:
    """Byte-level vocabularies: a table from id to bytes and a UTF-8 state machine. Malformed bytes become U+FFFD, one per
    maximal invalid part, as in the Unicode standard (chapter 3.9) and in the library's decode."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._hidden = hidden
        self._texts = tokenizer.texts
        self._decoder: Any = codecs.getincrementaldecoder("utf-8")("replace")

    def plain(self, id: int) -> str | None:
        if self._decoder.buffer or id in self._hidden or not 0 <= id < len(self._texts):
            return None
        return self._texts[id]

    def feed(self, id: int) -> str:
        return "" if id in self._hidden else self._decoder.decode(self._bytes_of(id))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class PieceDetokenizer:
    """SentencePiece with byte fallback. A run of byte tokens is text if it is valid UTF-8 as a whole and else one U+FFFD per
    byte, so it can come out only when the run has ended. The text's first space goes where the decoder strips it."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._token_of = tokenizer.token_of
        self._hidden = hidden
        self._strip = strips_first_space(tokenizer.decoder or {})
        self._run = bytearray()
        self._texts = tokenizer.texts

    def plain(self, id: int) -> str | None:
        if self._strip or self._run or id in self._hidden or not 0 <= id < len(self._texts):
            return None
        return self._texts[id]

    def feed(self, id: int) -> str:
        if id in self._hidden:
            return ""
        token = self._token_of(id).replace(METASPACE, " ")
        byte = fallback_byte(token)
        if byte is not None:
            self._run.append(byte)
            return ""
        return self._first(self.flush() + token)

    def flush(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            text = run.decode()
        except UnicodeDecodeError:
            text = "\ufffd" * len(run)
        return self._first(text)

    def _first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class LibraryDetokenizer:
    """Any other tokenizer: the library's own stream. Where it gives up (it does on text that changes backwards), what it has not
    said comes at the end, from the decode of everything."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer: tokenizers.Tokenizer = tokenizer.backend
        self._hidden = hidden
        self._stream: DecodeStream | None = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._said = ""

    def plain(self, id: int) -> str | None:
        return None

    def feed(self, id: int) -> str:
        if id in self._hidden:
            return ""
        self._ids.append(id)
        if self._stream is None:
            return ""
        try:
            text = self._stream.step(self._tokenizer, id) or ""
        except Exception:  # the library raises a plain Exception: "Invalid prefix encountered …"
            self._stream = None
            return ""
        self._said += text
        return text

    def flush(self) -> str:
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        rest = whole.removeprefix(self._said) if whole.startswith(self._said) else ""
        self._said += rest
        return rest
