"""Calls as a Python list: [f(a=1), g(b="x")]. Read as literals, never run; they go out when the list is whole."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Iterator
from keyword import iskeyword

from tailrace.text.tool_parsers.block import Block, NotACallError, Read, in_json
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.script import Script, Written, quoted
from tailrace.text.tool_parsers.unquoted import parameters, unsayable
from tailrace.text.tool_parsers.values import PYTHON, nested

NAME = re.compile(r"[A-Za-z_][\w.]*")
NUMBER = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # of JSON, without its sign
LINE = re.compile(rb"\r\n|\r|\n")
SURROGATE = re.compile(r"[\ud800-\udfff]")


def pythonic(block: Block) -> Read[None]:
    """Where no marker says that these are calls, the first name must be a declared function's, or the list is text."""
    yield from block.white()
    yield from block.expect("[")
    yield from block.white()
    name = yield from block.word()
    yield from block.white()
    if not NAME.fullmatch(name) or (yield from block.peek()) != "(":
        raise NotACallError(name)
    block.known(name)
    parts = ["[", name]
    yield from nested(block, parts.append, PYTHON, ["]"])
    calls = calls_of("".join(parts))
    for name, _ in calls:
        block.known(name)
    for name, arguments in calls:
        block.whole(name, arguments)
    yield from block.close()


def calls_of(text: str) -> list[tuple[str, dict[str, str]]]:
    """Names and arguments, these in JSON.

    Raises:
        NotACallError: anything but a list of calls with keywords and literals that JSON knows.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # what the model writes is no matter for our log
            tree = ast.parse(text, mode="eval").body
        lines = LINE.split(text.encode())
        return [call_of(node, lines) for node in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise NotACallError(str(error)) from None


def call_of(node: ast.expr, lines: list[bytes]) -> tuple[str, dict[str, str]]:
    """One call's name and arguments."""
    if not isinstance(node, ast.Call) or node.args or not NAME.fullmatch(name := ast.unparse(node.func)):
        raise NotACallError("a call with keywords only")
    arguments: dict[str, str] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NotACallError("**")
        arguments[keyword.arg] = in_json_of(keyword.value, lines)
    return name, arguments


def in_json_of(node: ast.expr, lines: list[bytes]) -> str:
    """A literal as JSON; numbers as they are written, whatever their size. lines: of the text.

    Raises:
        NotACallError: a value that JSON does not know.
    """
    match node:
        case ast.Constant(value=str(text)):
            return in_json(text) if not SURROGATE.search(text) else json.dumps(text)
        case ast.Constant(value=bool() | None):
            return in_json(node.value)
        case ast.Constant(value=int() | float() as number):
            written = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
            if NUMBER.fullmatch(written):
                return written
            if isinstance(number, int) or math.isfinite(number):
                return str(number)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as value)) if (
            not isinstance(value, bool)
        ):
            return ("-" if isinstance(node.op, ast.USub) else "") + in_json_of(node.operand, lines)
        case ast.Name(id="true" | "false" | "null"):
            return node.id
        case ast.List() | ast.Tuple():
            return f"[{','.join(in_json_of(one, lines) for one in node.elts)}]"
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return f"{{{','.join(f'{in_json_of(key_of(key), lines)}:{in_json_of(value, lines)}' for key, value in pairs)}}}"
    raise NotACallError("a value that JSON does not know")


def key_of(node: ast.expr | None) -> ast.expr:
    """A name of an object: a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node
    raise NotACallError("a name that is no string")


# ---- the same as a grammar


def pythonic_script(script: Script) -> Written:
    """A list without a marker. A value is JSON, which Python reads as a literal; true and false by themselves are Python's."""

    def form(function: Function, before: str = "") -> str:
        if not spoken(function.name, dotted=True):
            raise unsayable(function.name, "a name that is none in Python,")
        return f'"{before}{function.name}(" {keywords(script, function)} ")"'

    # one literal up to the parenthesis: up to there the text could still be something else, and a matcher reads what is longest
    first = script.rule("first", " | ".join(form(function, "[") for function in script.functions))
    more = f'(", " {script.rule("call", " | ".join(map(form, script.functions)))})*' if script.many else ""
    return Written("", f'{first} {more} "]"', r"\s*\[\s*[A-Za-z_][\w.]*\s*\((?s:.*)")


def keywords(script: Script, function: Function) -> str:
    """name=value, with a comma before each but the first that is there."""
    rest, place = '""', script.place(function)
    for i, (name, value, required) in reversed(list(enumerate(values(script, function)))):
        # after_i: what follows where something stands before; first_i: where nothing does
        one = script.rule(f"arg_{place}_{i}", f"{quoted(f'{name}=')} {value}")
        after, first = f"after_{place}_{i}", f"first_{place}_{i}"
        followed = f"{one} {rest}"
        alone = rest.replace("after_", "first_")
        script.rule(after, f'", " {followed}' + ("" if required else f" | {rest}"))
        script.rule(first, followed + ("" if required else f" | {alone}"))
        rest = after
    return rest.replace("after_", "first_")


def values(script: Script, function: Function) -> Iterator[tuple[str, str, bool]]:
    """Each parameter's name, how its value is written, and whether it is required."""
    for name, schema, required in parameters(function):
        if not spoken(name):
            raise unsayable(function.name, f"the name {name!r:.100}")
        plain = schema.get("type") == "boolean" and not schema.keys() & {"enum", "const"}
        yield name, '("True" | "False")' if plain else script.json(schema), required


def spoken(name: str, dotted: bool = False) -> bool:
    """Python reads it as a name."""
    parts = name.split(".") if dotted else [name]
    return name.isascii() and all(part.isidentifier() and not iskeyword(part) for part in parts)
