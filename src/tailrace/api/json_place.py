"""The field at a byte of a JSON text, for errors. Texts without errors are never passed to this module."""

from __future__ import annotations

import math
import re
import sys
from itertools import islice

import msgspec

from tailrace.api.schema.generate import RENAMED
from tailrace.api.token_fields import MAX_API_BIAS
from tailrace.errors import ParameterError
from tailrace.params import FIELDS
from tailrace.request.field_checks import MAX_BIAS
from tailrace.request.fields import Range, format_exact_number

_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)$")
_NO_NUMBER = re.compile(rb"-?(?:NaN|Infinity|nan|inf(?:inity)?)\b", re.IGNORECASE)
LONGEST = len(b"-infinity")
FARTHEST = 100_000  # bytes that are read for a name: others wait meanwhile
# A string or a number. A string may hold digits. A string that is cut off ends with the text, so no byte is read twice.
_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|-?[0-9][0-9.eE+-]*', re.DOTALL)
CANDIDATES = 16  # numbers whose place is looked for
SHOWN = 40  # characters of a number
OUT_OF_RANGE = "number out of range"  # msgspec's words for one beyond a double's
WITHIN = ("sampling_params", "what_if")  # objects of sampling fields
RANGES = {field.http_name or name: field.range for name, field in FIELDS.items() if field.range is not None}
RANGES |= {alias: field.range for field in FIELDS.values() if field.range is not None for alias in field.aliases}
RANGES |= {other: RANGES[name] for other, name in RENAMED.items() if name in RANGES}
RANGES |= dict.fromkeys(("max_output_tokens", "max_completion_tokens"), RANGES["max_tokens"])
RANGES |= {
    "cfg_scale": RANGES["guidance_scale"],
    "logit_bias": Range(-MAX_API_BIAS, MAX_API_BIAS),
    "sequence_bias": Range(-MAX_BIAS, MAX_BIAS),
}


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


def out_of_range(error: ParameterError, raw: bytes = b"") -> ParameterError:
    """Return an error that names the field and its range if `error` is about a number that no double can hold.
    Otherwise return `error` itself. raw: the JSON. It has the keys of mappings, which msgspec does not name."""
    if not str(error).endswith(OUT_OF_RANGE):
        return error
    place = re.compile(re.escape(error.param or "").replace(re.escape("[...]"), r"\..+"), re.DOTALL)
    numbers = (found for found in _NUMBER.finditer(raw, 0, FARTHEST) if not found[0].startswith(b'"'))
    endless = (found for found in numbers if math.isinf(as_float(found[0])))
    for found in islice(endless, CANDIDATES):
        if place.fullmatch(field := field_at(raw, found.start())):
            return make_range_error(field, found[0][:SHOWN].decode())
    return make_range_error(error.param or "", "")


def make_range_error(field: str, given: str) -> ParameterError:
    """The error about a number that no double can be."""
    first, _, rest = field.partition(".")
    name = re.split(r"[.\[]", rest if first in WITHIN else first)[0]
    what = f", got {given}" if given else ""
    if (allowed := RANGES.get(name)) is None:
        most = format_exact_number(sys.float_info.max)
        return ParameterError(f"{field or 'the body'}: numbers must be in [-{most}, {most}]{what}", field or None)
    kind = "an integer" if allowed.whole else "a number"
    return ParameterError(f"{field} must be {kind} in {allowed}{what}", field)


def as_float(text: bytes) -> float:
    """Return the number; NaN if the text is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


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
