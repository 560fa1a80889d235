"""Calls as a Python list: [f(a=1), g(b="x")]. Values are parsed as literals and never run.

The calls are sent when the list is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tailrace.errors import format_json
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import (
    ANY,
    BLANK,
    CallGrammar,
    GrammarWriter,
    escape_pattern,
    quote_literal,
)
from tailrace.text.tool_parsers.parameter_list import ParameterList, not_expressible, parameter_lists
from tailrace.text.tool_parsers.python_values import ERRORS, in_json_of, syntax_of
from tailrace.text.tool_parsers.tree_grammar import join_optional_parts
from tailrace.text.tool_parsers.values import BRACKETS, read_brackets

NAME = re.compile(r"[\w.:/@$-]+")
HEAD = re.compile(r"\s*(?P<name>[\w.:/@$-]+)\s*\(")
KEY = r"[^\s=,()\[\]{}'\"#\\]+"  # of an argument; it may be a reserved word of Python
KEYWORD = re.compile(rf"\s*(?P<name>{KEY})\s*=(?!=)\s*")
CLOSED = re.compile(r"\s*\)")
AFTER_VALUE = re.compile(r"\s*(?:,[,\s]*|(?=\)))")
AFTER_CALL = re.compile(r"\s*(?:,[,\s]*|\Z|(?=[\w.:/@$-]))")
STRINGS = (rf"{quote}(?:[^\\]|\\.)*?{quote}" for quote in ('"""', "'''", '"', "'"))
PIECE = re.compile(rf"{'|'.join(STRINGS)}|#[^\n]*|[^\[\](){{}}'\",#]+|[\[\](){{}},]", re.DOTALL)


class Pythonic(NamedTuple):
    """Calls with keywords and literals.

    - `pairs`: pairs of markers around the calls. A grammar uses the first pair that the model is known to write.
      Without pairs, a list stands alone.
    - `listed`: the calls are in a list. Otherwise each call stands on a separate line.
    """

    pairs: tuple[tuple[str, str | None], ...] = ()
    listed: bool = True

    def read(self, parser: CallParser) -> Parsing[None]:
        """Parse the list. If no marker opened it, its first name must be a declared function. Otherwise the list is
        content."""
        calls: list[tuple[str, dict[str, str]]] = []
        yield from parser.read_whitespace()
        if self.listed or (yield from parser.is_next("[")):
            yield from parser.expect("[")
            calls = calls_of((yield from self.call(parser, "]")).removesuffix("]"))
        else:
            while not (yield from self.closed(parser, bool(calls))):
                calls += calls_of((yield from self.call(parser, "")))
                yield from parser.read_whitespace()
                yield from parser.accept(",")
        for name, _ in calls:
            parser.require_declared(name)
        if not calls:
            raise NotACallError("a call")
        for name, arguments in calls:
            parser.add_call(name, arguments.items())
        yield from parser.close()

    def closed(self, parser: CallParser, called: bool) -> Parsing[bool]:
        """Read the closing marker. Return True if the calls have ended. The marker may be missing after calls."""
        return (yield from parser.close()) or (called and (yield from parser.comes_one(parser.ends)))

    def call(self, parser: CallParser, closing: str) -> Parsing[str]:
        """Read the text of a call. Read up to the closing bracket if there is one."""
        yield from parser.read_whitespace()
        name = yield from parser.read_name()
        yield from parser.read_whitespace()
        if not NAME.fullmatch(name) or (yield from parser.peek()) != "(":
            raise NotACallError(name)
        parser.require_declared(name)
        parts = [name]
        yield from read_brackets(parser, parts.append, closing)
        return "".join(parts)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of the calls.

        Values are JSON, which Python reads as literals. Only booleans are written differently, as True and False.
        """
        if not self.pairs:
            # The text up to the parenthesis is one literal. Up to there it could still be other text, and a matcher
            # takes the longest match.
            first = writer.rule(
                "first", " | ".join(write_python_call(writer, function, "[") for function in writer.functions)
            )
            more = f'(", " {write_any_call(writer)})*' if writer.many else ""
            names = "|".join(escape_pattern(function.name) for function in writer.functions)
            return CallGrammar(
                "", f'{first} {more} "]"', rf"\s*\[\s*[\w.:\/@$\-]+\s*\({ANY}|{ANY}\[{BLANK}({names}){BLANK}\({ANY}"
            )
        known = [pair for pair in self.pairs if writer.model_writes(pair[0])]
        opening, closing = (known or self.pairs)[0]
        calls = writer.repeat_item(write_any_call(writer), '", "' if self.listed else r'"\n"')
        body = f'"[" {calls} "]"' if self.listed else calls
        return CallGrammar(opening, f"{body} {writer.mark(closing) if closing else ''}")


def write_any_call(writer: GrammarWriter) -> str:
    """Return the rule of a call of any function."""
    return writer.rule("call", " | ".join(write_python_call(writer, function) for function in writer.functions))


def write_python_call(writer: GrammarWriter, function: Function, before: str = "") -> str:
    """Return the grammar of one call, after the text `before`."""
    return f'"{before}{function.name}(" {write_keywords(writer, function)} ")"'


def calls_of(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the names and arguments of calls, with the arguments as JSON. A name may be invalid in Python.

    Raises:
        NotACallError: the text is not calls with keywords and literals that JSON knows.
    """
    found: list[tuple[str, dict[str, str]]] = []
    at = 0
    while at < len(text):
        if (head := HEAD.match(text, at)) is None:
            raise NotACallError("a call")
        arguments, at = arguments_at(text, head.end())
        found.append((head["name"], arguments))
        at = matched(AFTER_CALL, text, at).end()
    return found


def arguments_at(text: str, at: int) -> tuple[dict[str, str], int]:
    """Return the arguments that begin after a call's bracket, and the place where the call ends."""
    found: dict[str, str] = {}
    while (end := CLOSED.match(text, at)) is None:
        key = matched(KEYWORD, text, at)
        value = value_at(text, key.end())
        found[key["name"]] = literal_of(value)
        at = matched(AFTER_VALUE, text, key.end() + len(value)).end()
    return found, end.end()


def value_at(text: str, begin: int) -> str:
    """Return the text of a value, up to a comma or a bracket that the value does not open."""
    at, depth = begin, 0
    while depth or text[at : at + 1] not in (",", ")", ""):
        found = matched(PIECE, text, at)
        depth += (found[0] in BRACKETS) - (found[0] in BRACKETS.values())
        at = found.end()
    return text[begin:at]


def literal_of(text: str) -> str:
    """Return a literal as JSON. The literal may have several lines."""
    if not text.strip():
        raise NotACallError("a value")
    try:
        return in_json_of(*syntax_of(f"({text.strip()}\n)"))
    except ERRORS as error:
        raise NotACallError(str(error)) from None


def matched(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    """Return the match at a place.

    Raises:
        NotACallError: the pattern does not match.
    """
    if (found := pattern.match(text, at)) is None:
        raise NotACallError(pattern.pattern)
    return found


# ---- the grammar


def write_keywords(writer: GrammarWriter, function: Function) -> str:
    """Return the grammar of name=value pairs. A comma precedes each written pair except the first."""
    if function.loose:
        pair = f'{writer.rule("ANY_NAME", "/[A-Za-z_][A-Za-z0-9_]*/")} "=" {any_literal(writer)}'
        return f'({pair} (", " {pair})*)?'
    place, lists = str(writer.place(function)), list[str]()
    for i, one in enumerate(parameter_lists(function)):
        parts = [
            (f"{quote_literal(f'{name}=')} {value}", required)
            for name, value, required in write_values(writer, function, one)
        ]
        lists.append(join_optional_parts(writer, parts, f"{place}_{i}" if i else place, '", "'))
    return f"({' | '.join(lists)})"


def any_literal(writer: GrammarWriter) -> str:
    """Return the rule of any literal that JSON also knows."""
    text = writer.rule("ANY_TEXT", r"""/"([^"\\\n\r]|\\[nrtbf"'\\])*"/ | /'([^'\\\n\r]|\\[nrtbf"'\\])*'/""")
    number = writer.rule("ANY_NUMBER", r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/")
    words = " | ".join(map(quote_literal, ("True", "False", "None", "true", "false", "null")))
    one = writer.rule("any_literal", f"{text} | {number} | {words} | any_list | any_dict")
    writer.rule("any_list", f'"[" ({one} ("," " "? {one})*)? "]"')
    writer.rule("any_dict", f'"{{" ({text} ":" " "? {one} ("," " "? {text} ":" " "? {one})*)? "}}"')
    return one


def write_values(writer: GrammarWriter, function: Function, given: ParameterList) -> Iterator[tuple[str, str, bool]]:
    """Yield each parameter's name, the grammar of its value, and whether the parameter is required."""
    for name, schema, required in given.fields:
        if not re.fullmatch(KEY, name):
            raise not_expressible(function.name, f"the name {format_json(name)}")
        plain = schema.get("type") == "boolean" and not schema.keys() & {"enum", "const"}
        value = writer.find_text(schema, in_json=True) or writer.write_json(schema, f"{function.name}.{name}")
        yield name, '("True" | "False")' if plain else value, required
