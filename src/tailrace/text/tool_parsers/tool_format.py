"""What a format of tool calls declares: its shape, its markers, evidence of models that use it, and its names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, Parsing
from tailrace.text.tool_parsers.frame import AnswerFrame
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter
from tailrace.text.tool_parsers.lookahead import match_sequences
from tailrace.text.tool_parsers.sections import Sectioned
from tailrace.text.tool_parsers.wrapped import JsonCalls

T = TypeVar("T")
Markers = tuple[tuple[str, str | None], ...]


class Shape(Protocol):
    """The parser and the grammar of a format."""

    def read(self, parser: CallParser, /) -> Parsing[None]:
        """Read the calls of a block."""
        ...

    def grammar(self, writer: GrammarWriter, /) -> CallGrammar:
        """Return the grammar of the same calls."""
        ...


class ToolFormat(NamedTuple):
    """One way to write tool calls.

    - `shape`: the parser and the grammar.
    - `markers`: (opening, closing or None) of a block of calls.
    - `evidence`: groups of texts. A model uses this format if it is known to write all texts of one group. Without
      groups, the user must name the format.
    - `models`: the models that write the format, for people.
    - `bare`: an answer that begins with this text may be a block without markers.
    - `inner`: further markers. A vocabulary may have them as special tokens.
    - `suffixed`: names of tags. A vocabulary may add the same suffix to all these tags (`<tool_calls:opensource>`).
    - `header`: a marker at the end of the prompt that begins the answer's first block.
    - `vllm`, `sglang`: the names of this format's parsers in vLLM and SGLang.
    - `also`: further names.
    - `frame`: the markers of the other parts of an answer, if the answer has more parts than texts and calls.
    """

    shape: Shape
    markers: Markers
    evidence: tuple[tuple[str, ...], ...]
    models: str
    bare: str = ""
    inner: tuple[str, ...] = ()
    suffixed: tuple[str, ...] = ()
    header: str = ""
    vllm: tuple[str, ...] = ()
    sglang: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    frame: AnswerFrame | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Return all markers that the parser must see in the text, even if they are special tokens."""
        outer = (mark for pair in self.markers for mark in pair if mark is not None)
        return tuple(dict.fromkeys([*outer, *self.inner]))

    def parse(self, parser: CallParser) -> Parsing[None]:
        """Read the calls of a block. Some models write the opening marker twice."""
        opening = parser.opening.strip()
        while opening and (length := (yield from match_sequences(parser, [(WHITE, opening)]))):
            parser.take(length)
        yield from self.shape.read(parser)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of the same calls."""
        return self.shape.grammar(writer)

    def fitted(self, vocabulary: Iterable[str]) -> ToolFormat:
        """Return the format with the suffix that this vocabulary adds to the tags."""
        if not self.suffixed:
            return self
        tag = re.compile(rf"<(?:{'|'.join(self.suffixed)})(:[^\s<>]+)>")
        suffix = next((found[1] for token in vocabulary if (found := tag.fullmatch(token))), "")
        return add_suffix(self, suffix, self.suffixed) if suffix else self


def add_suffix(value: T, suffix: str, names: tuple[str, ...]) -> T:
    """Return the value with a suffix after the names of these tags, in all texts that the value holds."""
    if isinstance(value, str):
        return re.sub(rf"<(/?)({'|'.join(names)})>", rf"<\1\2{suffix}>", value)  # pyright: ignore[reportReturnType]
    if isinstance(value, tuple):
        inner = [add_suffix(one, suffix, names) for one in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)  # pyright: ignore
    return value


def list_section_markers(shape: Sectioned) -> tuple[Markers, tuple[str, ...]]:
    """Return a section's pairs of block markers, and its inner markers.

    A section may lack its opening marker. Then the first call's marker opens the block.
    """
    return ((shape.opening, shape.closing), (shape.begin, shape.closing)), (shape.separator, shape.end)


def json_format(*pairs: tuple[str, str | None], **how: object) -> tuple[JsonCalls, Markers]:
    """Return the shape of JSON objects between these markers, and the markers."""
    return JsonCalls(pairs, **how), pairs  # pyright: ignore[reportArgumentType], its fields
