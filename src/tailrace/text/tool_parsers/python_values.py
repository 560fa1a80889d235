"""Python literals as JSON. They are parsed as syntax and never run."""

from __future__ import annotations

import ast
import math
import re
import warnings

from tailrace.text.tool_parsers.call_parser import NotACallError, in_json
from tailrace.text.utf8 import without_halves

NUMBER = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # of JSON, without the sign
LINE = re.compile(rb"\r\n|\r|\n")
NOT_FINITE = ("nan", "infinity", "inf", "undefined")  # unknown to JSON; written as null, as in JavaScript
ERRORS = (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError)


def syntax_of(text: str) -> tuple[ast.expr, list[bytes]]:
    """Return the syntax of an expression, and the lines of its text.

    Raises:
        one of ERRORS: the text is no expression.
    """
    with warnings.catch_warnings(action="ignore"):  # the model's text must not write warnings to our log
        return ast.parse(text, mode="eval").body, LINE.split(text.encode())


def convert_literal(text: str) -> str | None:
    """Return a Python literal as JSON. Return None if the text is no literal, or if JSON does not know its value."""
    try:
        return in_json_of(*syntax_of(text))
    except (*ERRORS, NotACallError):
        return None


def in_json_of(node: ast.expr, lines: list[bytes]) -> str:
    """Return a literal as JSON. Numbers of any size keep their notation. Bytes are text in UTF-8.

    Args:
        lines: the lines of the text.

    Raises:
        NotACallError: JSON does not know the value.
        UnicodeDecodeError: bytes are no UTF-8. This error is one of ERRORS.
        one of ERRORS: another literal is invalid.
    """
    match node:
        case ast.Constant(value=str(text)):
            return in_json(without_halves(text))
        case ast.Constant(value=bytes(data)):
            return in_json(data.decode())
        case ast.JoinedStr(values=parts) if all(isinstance(part, ast.Constant) for part in parts):
            return in_json(without_halves("".join(str(part.value) for part in parts if isinstance(part, ast.Constant))))
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
        case ast.Name(id=name) | ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Name(id=name)) if (
            name.lower() in NOT_FINITE
        ):
            return "null"
        case ast.List() | ast.Tuple():
            return f"[{','.join(in_json_of(one, lines) for one in node.elts)}]"
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            fields = (f"{in_json_of(key_of(key), lines)}:{in_json_of(value, lines)}" for key, value in pairs)
            return f"{{{','.join(fields)}}}"
    raise NotACallError("a value that JSON does not know")


def key_of(node: ast.expr | None) -> ast.expr:
    """Return a key of an object. Raise NotACallError if the key is no string."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
        return node
    raise NotACallError("a name that is no string")
