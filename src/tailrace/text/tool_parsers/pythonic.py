"""Calls as a Python list: [f(a=1), g(b="x")]. Parsed as literals, never run. Sent when the list is complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from keyword import iskeyword
from typing import NamedTuple

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.python_values import ERRORS, in_json_of, syntax_of
from tailrace.text.tool_parsers.trees import separated
from tailrace.text.tool_parsers.unquoted import not_expressible, parameters
from tailrace.text.tool_parsers.values import PYTHON, nested

NAME = re.compile(r"[A-Za-z_][\w.]*")


class Pythonic(NamedTuple):
    """Calls with keywords and literals. pairs: markers around them, of which a grammar takes the first that the model
    is known to write; none: a list stands alone. listed: in a list; else a call stands on each line."""

    pairs: tuple[tuple[str, str | None], ...] = ()
    listed: bool = True

    def read(self, parser: CallParser) -> Parsing[None]:
        """Parse the list. If no marker opened it, its first name must be a declared function; otherwise the list is
        content."""
        calls: list[tuple[str, dict[str, str]]] = []
        yield from parser.whitespace()
        if self.listed or (yield from parser.comes("[")):
            yield from parser.expect("[")
            calls = calls_of("[" + (yield from self.call(parser, "]")))
        else:
            while not (yield from parser.close()):
                calls += calls_of(f"[{yield from self.call(parser, '')}]")
                yield from parser.whitespace()
                yield from parser.accept(",")
        for name, _ in calls:
            parser.require_declared(name)
        if not calls:
            raise NotACallError("a call")
        for name, arguments in calls:
            parser.add_call(name, arguments.items())
        yield from parser.close()

    def call(self, parser: CallParser, closing: str) -> Parsing[str]:
        """The text of a call; up to the closing bracket if there is one."""
        yield from parser.whitespace()
        name = yield from parser.word()
        yield from parser.whitespace()
        if not NAME.fullmatch(name) or (yield from parser.peek()) != "(":
            raise NotACallError(name)
        parser.require_declared(name)
        parts = [name]
        yield from nested(parser, parts.append, PYTHON, closing)
        return "".join(parts)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Values are JSON, which Python reads as literals, except that booleans are written True and False."""
        if not self.pairs:
            # One literal up to the parenthesis: until there the text could still be other text, and a matcher takes the
            # longest match.
            first = writer.rule("first", " | ".join(form(writer, function, "[") for function in writer.functions))
            more = f'(", " {one_of(writer)})*' if writer.many else ""
            return CallGrammar("", f'{first} {more} "]"', r"\s*\[\s*[A-Za-z_][\w.]*\s*\((?s:.*)")
        known = [pair for pair in self.pairs if writer.model_writes(pair[0])]
        opening, closing = (known or self.pairs)[0]
        calls = writer.repeated(one_of(writer), '", "' if self.listed else r'"\n"')
        body = f'"[" {calls} "]"' if self.listed else calls
        return CallGrammar(opening, f"{body} {writer.mark(closing) if closing else ''}")


def one_of(writer: GrammarWriter) -> str:
    """A call of one of the functions."""
    return writer.rule("call", " | ".join(form(writer, function) for function in writer.functions))


def form(writer: GrammarWriter, function: Function, before: str = "") -> str:
    """One call, with text before it."""
    if not is_python_name(function.name, dotted=True):
        raise not_expressible(function.name, "a name that is none in Python,")
    return f'"{before}{function.name}(" {keywords(writer, function)} ")"'


def calls_of(text: str) -> list[tuple[str, dict[str, str]]]:
    """Names and arguments, the arguments in JSON.

    Raises:
        NotACallError: the text is not a list of calls with keywords and literals that JSON knows.
    """
    try:
        tree, lines = syntax_of(text)
        return [call_of(node, lines) for node in tree.elts] if isinstance(tree, ast.List) else []
    except ERRORS as error:
        raise NotACallError(str(error)) from None


def call_of(node: ast.expr, lines: list[bytes]) -> tuple[str, dict[str, str]]:
    """The name and arguments of one call."""
    if not isinstance(node, ast.Call) or node.args or not NAME.fullmatch(name := ast.unparse(node.func)):
        raise NotACallError("a call with keywords only")
    arguments: dict[str, str] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NotACallError("**")
        arguments[keyword.arg] = in_json_of(keyword.value, lines)
    return name, arguments


# ---- the grammar


def keywords(writer: GrammarWriter, function: Function) -> str:
    """name=value pairs, with a comma before each but the first one written."""
    parts = [(f"{quoted(f'{name}=')} {value}", required) for name, value, required in values(writer, function)]
    return separated(writer, parts, str(writer.place(function)), '", "')


def values(writer: GrammarWriter, function: Function) -> Iterator[tuple[str, str, bool]]:
    """Each parameter's name, the grammar of its value, and whether it is required."""
    for name, schema, required in parameters(function):
        if not is_python_name(name):
            raise not_expressible(function.name, f"the name {name!r:.100}")
        plain = schema.get("type") == "boolean" and not schema.keys() & {"enum", "const"}
        yield name, '("True" | "False")' if plain else writer.json(schema), required


def is_python_name(name: str, dotted: bool = False) -> bool:
    """True if Python reads the text as a name."""
    parts = name.split(".") if dotted else [name]
    return name.isascii() and all(part.isidentifier() and not iskeyword(part) for part in parts)
