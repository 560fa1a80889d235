"""The grammar of calls that a response template reads: the texts around a name and its arguments, and the arguments.

The grammar admits only calls that the template reads as they are meant. A text therefore holds no marker that ends it,
or that ends the region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tailrace.errors import ParameterError, format_json
from tailrace.text.response_templates.marker_parts import Blank, Group, Part, read_parts
from tailrace.text.response_templates.pattern import Pattern
from tailrace.text.response_templates.search import find_all_matches
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quote_literal

LINE = '("\\n")?'


class Arguments(Protocol):
    """The grammar of a call's arguments."""

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Return the texts of which one begins the arguments."""
        ...

    def start(self, writer: GrammarWriter, /) -> Callable[[Function], str]:
        """Return what writes the grammar of the arguments of one function."""
        ...


class TemplateCalls(NamedTuple):
    """Calls as `opening` head NAME middle ARGUMENTS tail `closing`, read by the template alone.

    - `closing`: the texts of the closing marker. White space may stand between them.
    - `pattern`: the opening pattern, whose group `group` is the name. None: the name is a JSON string.
    """

    opening: str
    head: tuple[Part, ...]
    middle: tuple[Part, ...]
    arguments: Arguments
    tail: str
    closing: tuple[str, ...]
    pattern: Pattern | None = None
    group: str = ""

    def read(self, parser: CallParser, /) -> Parsing[None]:
        """Reject all text, because the template reads the calls."""
        raise NotACallError(parser.text)
        yield

    def grammar(self, writer: GrammarWriter, /) -> CallGrammar:
        """Return the grammar of calls of the writer's functions.

        Raises:
            ParameterError: the template can't read a function's name, or its arguments can't be enforced.
        """
        head, middle = write_parts(writer, self.head), write_parts(writer, self.middle)
        closing = f" {LINE} ".join(map(writer.mark, self.closing))
        tail, write_arguments = quote_literal(self.tail) if self.tail else "", self.arguments.start(writer)

        def write_call(function: Function) -> str:
            if not self.reads_name(function.name):
                raise ParameterError(
                    f"tools: the checkpoint's response template can't read a call of {format_json(function.name)}",
                    "tools",
                )
            return f"{head} {quote_literal(function.name)} {middle} {write_arguments(function)} {tail} {closing}"

        return CallGrammar(self.opening, writer.write_calls(write_call, f'"\\n" {writer.mark(self.opening)}'))

    def reads_name(self, name: str) -> bool:
        """Return whether the template reads this name from a call, and nothing behind it."""
        if self.pattern is None:
            return True
        before, after = join_texts(self.head), join_texts(self.middle)
        text = f"{self.opening}{before}{name}{after}"
        for begun in (*self.arguments.beginnings, self.closing[0]):
            found = next(find_all_matches(self.pattern, f"{text}{begun}{name}{after}"), None)
            if found is None or found[1].get(self.group) != name or text[found[0].end :]:
                return False
            if found[0].end > len(text) and begun[: found[0].end - len(text)].strip():
                return False
        return True


def join_texts(parts: tuple[Part, ...]) -> str:
    """Return a marker without its white space."""
    return "".join(part for part in parts if isinstance(part, str))


def write_parts(writer: GrammarWriter, parts: tuple[Part, ...]) -> str:
    """Return the grammar of the parts of a marker. White space is a line break, or nothing."""
    return " ".join(writer.mark(part) if isinstance(part, str) else LINE for part in parts)


def split_opening(pattern: Pattern) -> tuple[str, tuple[Part, ...], str, tuple[Part, ...]] | None:
    """Return the parts of an opening pattern with one group: its first text, the parts before the group, the group's
    name, and the parts behind it. White space at the ends is left out."""
    parts = read_parts(pattern.source)
    if not parts or sum(isinstance(part, Group) for part in parts) != 1:
        return None
    at, name = next((place, part.name) for place, part in enumerate(parts) if isinstance(part, Group))
    before, after = trim_blanks(parts[:at]), trim_blanks(parts[at + 1 :])
    if not before or not isinstance(before[0], str) or (after and not isinstance(after[0], str)):
        return None
    return before[0], before[1:], name, after


def trim_blanks(parts: list[Part]) -> tuple[Part, ...]:
    """Return the parts without white space at the ends."""
    while parts and isinstance(parts[0], Blank):
        parts = parts[1:]
    while parts and isinstance(parts[-1], Blank):
        parts = parts[:-1]
    return tuple(parts)
