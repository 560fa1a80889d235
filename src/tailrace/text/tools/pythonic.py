"""Calls as a Python list: [f(a=1), g(b="x")]. Read as literals, never run; they go out when the list is whole."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator
from keyword import iskeyword

from tailrace.text.tools.block import Block, NotACallError, Read, in_json
from tailrace.text.tools.functions import Function
from tailrace.text.tools.script import Script, Written, quoted
from tailrace.text.tools.unquoted import parameters, unsayable
from tailrace.text.tools.values import PYTHON, nested

NAME = re.compile(r"[A-Za-z_][\w.]*")
JSON_WORDS = {"true": True, "false": False, "null": None}


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
        return [call_of(node) for node in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise NotACallError(str(error)) from None


def call_of(node: ast.expr) -> tuple[str, dict[str, str]]:
    """One call's name and arguments."""
    if not isinstance(node, ast.Call) or node.args or not NAME.fullmatch(name := ast.unparse(node.func)):
        raise NotACallError("a call with keywords only")
    arguments: dict[str, str] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NotACallError("**")
        value = ast.literal_eval(JsonWords().visit(keyword.value))
        if not of_json(value):
            raise NotACallError("a value that JSON does not know")
        arguments[keyword.arg] = in_json(value)
    return name, arguments


def of_json(value: object) -> bool:
    """JSON can say it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(of_json, value.values()))
    if isinstance(value, list | tuple):
        return all(map(of_json, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


class JsonWords(ast.NodeTransformer):
    """true, false and null as JSON writes them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(JSON_WORDS[node.id]) if node.id in JSON_WORDS else node


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
