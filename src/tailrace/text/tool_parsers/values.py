"""Values inside a call: passed on as they are written, with an eye on brackets and strings only; or bare text made JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from tailrace.text.tool_parsers.block import WHITE, Block, NotACallError, Read, Sink, in_json

INSIDE = {quote: re.compile(rf"[^{quote}\\]+") for quote in ("'", '"')}  # of a string
PLAIN = re.compile(r'[^"<\\]+')
SCALAR = re.compile(r"[A-Za-z0-9_.+-]*")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class Shape(NamedTuple):
    """What a language's values are made of: its quotes, its brackets, and what else may stand between brackets."""

    quotes: str
    brackets: Mapping[str, str]
    plain: re.Pattern[str]


JSON = Shape('"', {"{": "}", "[": "]"}, re.compile(r"[\sA-Za-z0-9_.+,:-]+"))
PYTHON = Shape("'\"", {"{": "}", "[": "]", "(": ")"}, re.compile(r"[^\[\](){}'\"]+"))


def nested(block: Block, sink: Sink, shape: Shape, inside: Iterable[str] = ()) -> Read[None]:
    """A string, or brackets and all in them, handed on as it comes. `inside`: what closes the brackets that are open already.

    Raises:
        NotACallError: a character that can't stand there. What came before it has been handed on.
    """
    closings = list(inside)
    while True:
        char = yield from block.peek()
        if char in shape.quotes:
            yield from string(block, sink)
        elif char in shape.brackets:
            closings.append(shape.brackets[char])
            sink(block.take(1))
        elif closings and char == closings[-1]:
            closings.pop()
            sink(block.take(1))
        elif closings and (run := shape.plain.match(block.text, block.at)):
            sink(block.take(len(run[0])))
        else:
            raise NotACallError(char)
        if not closings:
            return


def string(block: Block, sink: Sink) -> Read[None]:
    """A string in its quotes, handed on as it comes."""
    quote = block.take(1)
    sink(quote)
    while (char := (yield from block.peek())) != quote:
        if char == "\\":
            sink(block.take(1))
            yield from block.peek()
            sink(block.take(1))
        elif run := INSIDE[quote].match(block.text, block.at):
            sink(block.take(len(run[0])))
    sink(block.take(1))


def json_value(block: Block, sink: Sink) -> Read[None]:
    """Any JSON value, handed on as it comes; raise NotACallError where there is none."""
    char = yield from block.peek()
    if char in JSON.quotes or char in JSON.brackets:
        yield from nested(block, sink, JSON)
    elif SCALAR.fullmatch(char):
        yield from block.span(SCALAR, sink)
    else:
        raise NotACallError(char)


def unquoted(block: Block, marker: str, schema: Any, then: tuple[str, ...]) -> Read[str]:
    """A value that stands without quotes before the marker, which is taken too. Where it may be JSON and begins as such, a marker in one
    of its strings is part of it; but not where it may be text as well, which can hold a lone quote, and the call goes on behind the marker.

    Args:
        then: what may come behind the marker and white space, the block's end aside.
    Raises:
        NotACallError: the block is closed before.
    """
    kinds, parts = kinds_of(schema), list[str]()
    yield from block.span(WHITE, parts.append)
    if (kinds and kinds <= {"string", "null"}) or (yield from block.peek()) not in '"[{':
        return "".join(parts) + (yield from block.until(marker))
    ends = () if kinds and "string" not in kinds else tuple(tag for tag in (*then, block.closing) if tag is not None)
    inside = False  # of a string
    while True:
        char = yield from block.peek()
        if char == "<" and (not inside or (yield from followed(block, marker, ends))):
            if (yield from block.literal(marker)):
                return "".join(parts)
            if block.closing is not None and (yield from block.literal(block.closing)):
                raise NotACallError(block.closing)
        if char == "\\" and inside:
            parts.append(block.take(1))
            if (yield from block.peek()) in '"\\':
                parts.append(block.take(1))
            continue
        inside ^= char == '"'
        run = PLAIN.match(block.text, block.at)
        parts.append(block.take(len(run[0]) if run else 1))


def followed(block: Block, marker: str, then: tuple[str, ...]) -> Read[bool]:
    """The marker comes next, and behind it and white space one of these. Nothing is taken."""
    while True:
        there = block.text[block.at : block.at + len(marker)]
        if not marker.startswith(there):
            return False
        if there == marker:
            white = WHITE.match(block.text, block.at + len(marker))
            behind = white.end() if white else len(block.text)
            if block.text.startswith(then, behind):
                return True
            if not any(tag.startswith(block.text[behind : behind + len(tag)]) for tag in then):
                return False
        yield


def json_text(block: Block) -> Read[str]:
    """A JSON string's value; raise NotACallError if what comes is none."""
    parts: list[str] = []
    if (yield from block.peek()) != '"':
        raise NotACallError("a string")
    yield from string(block, parts.append)
    try:
        return msgspec.json.decode("".join(parts), type=str)
    except msgspec.DecodeError as error:
        raise NotACallError(str(error)) from None


def json_of(text: str, schema: Any) -> str:
    """A value that was written without quotes → JSON: a string where the schema wants one or the text is nothing else."""
    kinds = kinds_of(schema)
    bare = PYTHON_WORDS.get(text.strip(), text.strip())
    if kinds and kinds <= {"string", "null"}:
        return "null" if bare == "null" and "null" in kinds and text not in _list(schema.get("enum")) else in_json(text)
    return bare if is_json(bare) else in_json(text)


def is_json(text: str) -> bool:
    """It is JSON as it is written, numbers of any size too."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(name)


def kinds_of(schema: Any) -> set[str]:
    """The types that a parameter's schema names, also as alternatives, or those of the values that it lists; none if it doesn't say."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if named is None and values and all(value is None or isinstance(value, str) for value in values):
        return {"null" if value is None else "string" for value in values}
    kinds = {named} if isinstance(named, str) else {kind for kind in _list(named) if isinstance(kind, str)}
    for key in ("anyOf", "oneOf"):
        for choice in _list(schema.get(key)):
            if isinstance(choice, Mapping) and isinstance(choice.get("type"), str):
                kinds.add(choice["type"])
    return kinds


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
