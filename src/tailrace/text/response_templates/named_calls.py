"""Calls of a response template whose names stand before their arguments, which are JSON: a grammar for them."""

from __future__ import annotations

import re
from typing import NamedTuple

from tailrace.errors import ParameterError, format_json
from tailrace.text.response_templates.search import ESCAPED, PLAIN
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quote_literal

GROUP = re.compile(r"\(\?P<(\w+)>(\\[wS]|\[\^?(?:\\.|[^\]\\\[])+\])\+\??\)")
BLANK = re.compile(r"\\s\*|\\n\?")


class NamedCalls(NamedTuple):
    """Calls as `opening` NAME `separator` {…} `closing`, read by the template alone.

    - `name`: a pattern of one character of a name.
    """

    opening: str
    name: str
    separator: str
    closing: str

    def read(self, parser: CallParser, /) -> Parsing[None]:
        """Reject all text, because the template reads the calls."""
        raise NotACallError(parser.text)
        yield

    def grammar(self, writer: GrammarWriter, /) -> CallGrammar:
        """Return the grammar of calls of the writer's functions.

        Raises:
            ParameterError: the template can't read a function's name.
        """
        opening, separator, closing = (writer.mark(text) for text in (self.opening, self.separator, self.closing))

        def write_call(function: Function) -> str:
            if re.fullmatch(f"(?:{self.name})+", function.name) is None:
                raise ParameterError(
                    f"tools: the checkpoint's response template can't read a call of {format_json(function.name)}",
                    "tools",
                )
            return f"{quote_literal(function.name)} {separator} {writer.arguments(function)} {closing}"

        return CallGrammar(self.opening, writer.write_calls(write_call, f'"\\n" {opening}'))


def make_named_calls(pattern: str, closing: str) -> tuple[str, NamedCalls] | None:
    """Return the name of the group and the calls that an opening pattern describes.

    Return None if the pattern is more than a text, one group of certain characters, and a text that the group can't
    hold.
    """
    if (group := GROUP.search(pattern)) is None:
        return None
    before, after = (BLANK.sub("", part) for part in (pattern[: group.start()], pattern[group.end() :]))
    if not (PLAIN.fullmatch(before) and PLAIN.fullmatch(after)):
        return None
    opening, separator = (ESCAPED.sub(r"\1", text) for text in (before, after))
    try:
        one = re.compile(group[2])
    except re.error:
        return None
    return None if one.match(separator) else (group[1], NamedCalls(opening, group[2], separator, closing))
