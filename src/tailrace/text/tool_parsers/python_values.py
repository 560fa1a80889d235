"""Python literals as JSON. Parsed as syntax, never run."""

from __future__ import annotations

import ast
import math
import re
import warnings

from tailrace.text.tool_parsers.call_parser import NotACallError, in_json
from tailrace.text.utf8 import without_halves

NUMBER = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # of JSON, without the sign
LINE = re.compile(rb"\r\n|\r|\n")
NOT_FINITE = ("nan", "infinity", "inf", "undefined")  # JSON has none of these; null is what JavaScript writes
ERRORS = (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError)


def syntax_of(text: str) -> tuple[ast.expr, list[bytes]]:
    """The syntax of an expression, and the lines of its text.

    Raises:
        one of ERRORS: the text is no expression.
    """
    with warnings.catch_warnings(action="ignore"):  # the model's text must not write warnings to our log
        return ast.parse(text, mode="eval").body, LINE.split(text.encode())


def convert_literal(text: str) -> str | None:
    """A Python literal as JSON; None if the text is none, or one that JSON does not know."""
    try:
        return in_json_of(*syntax_of(text))
    except (*ERRORS, NotACallError):
        return None


def in_json_of(node: ast.expr, lines: list[bytes]) -> str:
    """A literal as JSON. Numbers keep the way they are written, whatever their size. Bytes are text in UTF-8. lines: of
    the text.

    Raises:
        NotACallError: a value that JSON does not know.
        UnicodeDecodeError: bytes that are no UTF-8; one of ERRORS.
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
    """A key of an object, which must be a string."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
        return node
    raise NotACallError("a name that is no string")
