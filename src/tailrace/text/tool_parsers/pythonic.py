"""Calls as a Python list: [f(a=1), g(b="x")]. Parsed as literals, never run. Sent when the list is complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from keyword import iskeyword

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.python_values import ERRORS, in_json_of, syntax_of
from tailrace.text.tool_parsers.unquoted import not_expressible, parameters
from tailrace.text.tool_parsers.values import PYTHON, nested

NAME = re.compile(r"[A-Za-z_][\w.]*")


def pythonic(parser: CallParser) -> Parsing[None]:
    """Parse the list. If no marker opened it, its first name must be a declared function; otherwise the list is
    content."""
    yield from parser.whitespace()
    yield from parser.expect("[")
    yield from parser.whitespace()
    name = yield from parser.word()
    yield from parser.whitespace()
    if not NAME.fullmatch(name) or (yield from parser.peek()) != "(":
        raise NotACallError(name)
    parser.require_declared(name)
    parts = ["[", name]
    yield from nested(parser, parts.append, PYTHON, ["]"])
    calls = calls_of("".join(parts))
    for name, _ in calls:
        parser.require_declared(name)
    for name, arguments in calls:
        parser.add_call(name, arguments.items())
    yield from parser.close()


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


def pythonic_grammar(writer: GrammarWriter) -> CallGrammar:
    """A list without a marker. Values are JSON, which Python reads as literals, except that booleans are written True
    and False."""

    def form(function: Function, before: str = "") -> str:
        if not is_python_name(function.name, dotted=True):
            raise not_expressible(function.name, "a name that is none in Python,")
        return f'"{before}{function.name}(" {keywords(writer, function)} ")"'

    # One literal up to the parenthesis: until there the text could still be other text, and a matcher takes the longest
    # match.
    first = writer.rule("first", " | ".join(form(function, "[") for function in writer.functions))
    more = f'(", " {writer.rule("call", " | ".join(map(form, writer.functions)))})*' if writer.many else ""
    return CallGrammar("", f'{first} {more} "]"', r"\s*\[\s*[A-Za-z_][\w.]*\s*\((?s:.*)")


def keywords(writer: GrammarWriter, function: Function) -> str:
    """name=value pairs, with a comma before each but the first one written."""
    rest, place = '""', writer.place(function)
    for i, (name, value, required) in reversed(list(enumerate(values(writer, function)))):
        # after_i: what follows if a pair was written before; first_i: if none was
        one = writer.rule(f"arg_{place}_{i}", f"{quoted(f'{name}=')} {value}")
        after, first = f"after_{place}_{i}", f"first_{place}_{i}"
        followed = f"{one} {rest}"
        alone = rest.replace("after_", "first_")
        writer.rule(after, f'", " {followed}' + ("" if required else f" | {rest}"))
        writer.rule(first, followed + ("" if required else f" | {alone}"))
        rest = after
    return rest.replace("after_", "first_")


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
