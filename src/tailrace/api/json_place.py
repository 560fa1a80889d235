"""Where in a JSON text something lies: byte → field. For errors alone; what is read well never comes here."""

from __future__ import annotations

import re

import msgspec

from tailrace.errors import ParameterError

_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)$")
_NO_NUMBER = re.compile(rb"-?(?:NaN|Infinity|nan|inf(?:inity)?)\b", re.IGNORECASE)
LONGEST = len(b"-infinity")
FARTHEST = 100_000  # bytes that are read for a name: others wait meanwhile


def not_a_number(error: Exception, raw: bytes) -> ParameterError | None:
    """The error that names the field, where `error` is msgspec's about NaN or an infinity, which JSON does not have and
    several languages write; else None."""
    found = _BYTE.search(str(error))
    if found is None or int(found[1]) > FARTHEST:
        return None
    at = int(found[1])
    for literal in _NO_NUMBER.finditer(raw, max(0, at - LONGEST), at + LONGEST):
        if literal.start() <= at < literal.end() and (field := field_at(raw, literal.start())):
            name = literal[0].decode()
            return ParameterError(f"{field}: JSON has no {name}; give a number, or leave the field out", field)
    return None


def field_at(raw: bytes, at: int) -> str:
    """The path of the value at byte `at`, such as "what_if.logit_bias.7" or "prompt[2]"; "" for the text itself. Before
    `at` the text must be well-formed."""
    path: list[str | int | None] = []  # of the open objects and lists: the key, or None before it is read, or the index
    for mark in _MARK.finditer(raw, 0, at):
        sign = mark[0][:1]
        if sign in b"{[":
            path.append(None if sign == b"{" else 0)
        elif sign in b"}]":
            path.pop()
        elif sign == b",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif path and path[-1] is None:
            path[-1] = msgspec.json.decode(mark[0], type=str)
    if None in path:  # no key stands before it
        return ""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
