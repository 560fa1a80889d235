"""The declaration of a request's field: written once, next to its type, and read by all code that needs it.

A declaration is the metadata of an annotation: `top_p: Annotated[float, Field("…", Range(0.0, 1.0), …)] = 1.0`. The
checks of SamplingParams, the HTTP schema, OpenAPI's ranges, the command line's flags, the tables of docs/sampling.md
and the parametrisation of the tests come from it. This file knows no field by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
import numpy as np

from tailrace.errors import ParameterError, format_json

MAX_SEED = 2**63 - 1
MIN_SEED = -(2**63)
RANDOM_SEED = -1  # "no seed" over HTTP and on the command line, as in llama.cpp and vLLM
MAX_TOKEN_ID = 2**31 - 1  # larger than any vocabulary; keeps sent numbers within 64 bits
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class Range(NamedTuple):
    """The numbers that a field may have; only integers if both ends are. A value outside is refused, never clamped."""

    low: float
    high: float
    low_in: bool = True
    high_in: bool = True

    @property
    def whole(self) -> bool:
        """True if only integers are inside."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        above = self.low <= value if self.low_in else self.low < value
        return above and (value <= self.high if self.high_in else value < self.high)

    def __str__(self) -> str:
        opening, closing = "[" if self.low_in else "(", "]" if self.high_in else ")"
        return f"{opening}{format_exact_number(self.low)}, {format_exact_number(self.high)}{closing}"

    def check(self, name: str, value: object, hint: str = "") -> None:
        """Raise ParameterError, naming the field, unless the value is inside. hint: text that the error appends."""
        if value not in self:
            kind = "an integer" if self.whole else "a number"
            raise ParameterError(f"{name} must be {kind} in {self}, got {repr_value(value)}{hint}", name)


COUNT = Range(0, 2**31 - 1)

Kind = Literal["edit", "reshape", "truncation", "draw", "report", "stop", "text", "engine"]
KINDS: dict[Kind, str] = {
    "edit": "changes the logits of single tokens",
    "reshape": "changes probabilities and removes no token",
    "truncation": "removes tokens; refused beside mirostat, which replaces it",
    "draw": "what is drawn, and how often",
    "report": "what is reported of each token",
    "stop": "where a sequence ends",
    "text": "what leaves text",
    "engine": "how the engine computes it",
}
# Conditions under which a field does nothing, for fields with more such values than their default.
OFF: dict[str, Callable[[Any], bool]] = {"0 and below": lambda value: value <= 0, "below 0": lambda value: value < 0}


@dataclass(frozen=True)
class Field:
    """The declaration of one field.

    - doc: one sentence, for people.
    - range: of a number.
    - hint: the end of the error for a number outside the range.
    - kind: the kind of the field's effect, a key of KINDS.
    - edit, refinement: the field's method of sampling/methods, by its name in method_order.py. A field without `needs`
      switches the method on.
    - off: a key of OFF, if more values than the default are off.
    - needs: other fields. If all of them are neutral, this field has no effect.
    - needs_any: a condition. The fields that fulfil it are added to `needs`.
    - voided_by: fields that cancel its effect (keys of params.VOIDS). Mirostat always voids a truncation.
    - stateful: its method learns from the drawn tokens, and can't unlearn them.
    - excludes: it rules tokens out: "some", or "most". With "most" a list of the other tokens is worth a report.
    - entries: the most entries of a list or mapping. unit: what an error calls them.
    - once: a repeated entry is dropped.
    - check(name, value): raises ParameterError for other invalid values.
    - token_ids(value): returns the token ids in the value.
    - http: the field's type over HTTP. With "same" it is the declared type. With "converted" it has another meaning,
      which api/ reads. With "" HTTP lacks the field.
    - http_name: its name over HTTP, if it differs.
    - aliases: other servers' names for it. A request may use them.
    - beams: it is allowed with a beam search.
    - flag: the placeholder of the command line's flag. None: it follows from the type. With "" the field has no flag.
    - instead: how a program that uses the sampler alone gets the same effect. It is "" if the sampler acts on the
      field.
    - name, type, default: filled in by `declared_fields`.
    """

    doc: str
    range: Range | None = None
    _: KW_ONLY
    kind: Kind
    hint: str = ""
    edit: str = ""
    refinement: str = ""
    off: str = ""
    needs: tuple[str, ...] = ()
    needs_any: Callable[[Field], bool] | None = None
    voided_by: tuple[str, ...] = ()
    stateful: bool = False
    excludes: Literal["", "some", "most"] = ""
    entries: int | None = None
    unit: str = "entries"
    once: bool = False
    check: Callable[[str, Any], None] | None = None
    token_ids: Callable[[Any], Iterable[int]] | None = None
    http: Any = "same"
    http_name: str = ""
    aliases: tuple[str, ...] = ()
    beams: bool = False
    flag: str | None = None
    instead: str = ""
    name: str = ""
    type: Any = None
    default: Any = None

    def neutral(self, value: Any) -> bool:
        """Return whether the field does nothing at this value."""
        return OFF[self.off](value) if self.off else value == self.default

    def check_value(self, value: Any) -> Any:
        """Return the value, converted to the declared type.

        Raises:
            ParameterError: it has another type, is out of range, has too many entries, or `check` refuses it.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if self.range is not None:
            if value is not None:
                self.range.check(self.name, value, self.hint)
            elif self.default is not None:
                raise ParameterError(
                    f"{self.name} must be a number, got None; leave it out for {self.default}", self.name
                )
            return value
        value = conform_value(value, self.type, self.name, self.name)
        if value is not None:
            if self.entries is not None:
                self.check_entries(len(value))
            if self.check is not None:
                self.check(self.name, value)
            if self.once:
                value = tuple(dict.fromkeys(value))
        return value

    def check_entries(self, size: int, of: str | None = None) -> None:
        """Raise ParameterError for too many entries. The error names `of`, the field of the entries."""
        if self.entries is not None and size > self.entries:
            text = " of text" if of and self.unit == "entries" else ""
            field = of or self.name
            raise ParameterError(f"{field} must have at most {self.entries} {self.unit}{text}, got {size}", field)


def removes_most(field: Field) -> bool:
    """Return whether the field removes so many tokens that a list of the rest is worth a report."""
    return field.excludes == "most" or (field.kind == "truncation" and not field.needs)


def declared_fields(struct: type[msgspec.Struct]) -> dict[str, Field]:
    """Return the declarations of a struct's fields, by name, in order. Its type hints must be evaluable: `struct` is
    complete.

    Raises:
        TypeError: a field has no declaration, or its default lies outside its range.
    """
    found: dict[str, Field] = {}
    for info in msgspec.structs.fields(struct):
        kind, *notes = get_args(info.type) if get_origin(info.type) is Annotated else (info.type,)
        declared = next((note for note in notes if isinstance(note, Field)), None)
        default = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
        if declared is None:
            raise TypeError(f"{struct.__name__}.{info.name} has no Field beside its type")
        if declared.range is not None and default is not None and default not in declared.range:
            raise TypeError(f"the default of {struct.__name__}.{info.name}, {default}, is not in {declared.range}")
        found[info.name] = replace(declared, name=info.name, type=kind, default=default)
    for name, field in found.items():
        if field.needs_any is not None:
            more = tuple(other.name for other in found.values() if field.needs_any(other))
            found[name] = replace(field, needs=field.needs + more)
    return found


def conform_fields(record: msgspec.Struct, within: str) -> None:
    """Convert every field of a record to its declared type if the conversion loses nothing: see `conform_value`.

    Args:
        within: the field that holds the record, for errors.
    """
    for name, kind, default in typed_fields(type(record)):
        value = getattr(record, name)
        if value is not default:
            made = conform_value(value, kind, f"{within}.{name}", within)
            if made is not value:
                msgspec.structs.force_setattr(record, name, made)


@cache
def typed_fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any, Any]]:
    """Return a record's fields: name, type, default."""
    return [(field.name, field.type, field.default) for field in msgspec.structs.fields(kind)]


CONVERSION = (msgspec.MsgspecError, ValueError, TypeError, AttributeError)  # half of a surrogate pair, …


def conform_value(value: Any, kind: Any, place: str, field: str) -> Any:
    """Return the value converted to this type if the conversion loses nothing. A value of this type is returned
    unchanged.

    A list becomes a tuple, a mapping a record, a number of numpy one of Python.

    Raises:
        ParameterError: it is of another type, or not one of the allowed names. place: its name in the message.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if get_origin(kind) is Literal:
        if not isinstance(value, str) or value not in get_args(kind):
            raise ParameterError(f"{place} must be one of {', '.join(get_args(kind))}, got {format_json(value)}", field)
        return value
    if kind is bool and not isinstance(value, bool):
        raise ParameterError(f"{place} must be true or false, got {format_json(value)}", field)
    try:
        try:
            return msgspec.convert(value, kind)
        except CONVERSION:
            return msgspec.convert(to_python_value(value), kind)
    except CONVERSION as error:
        if isinstance(error.__cause__, ParameterError):  # an error of the record's own checks
            raise error.__cause__ from None
        raise ParameterError(f"{place} is of the wrong type: {str(error).replace('`', '')}", field) from None


def to_python_value(value: Any) -> Any:
    """Return the value with Python's own numbers and lists in it, instead of numpy's and of ranges."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, dict):
        return {to_python_value(key): to_python_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [to_python_value(entry) for entry in value]
    return value


def format_exact_number(value: float) -> str:
    """Return a number for a message: every digit of a whole number, an exponent only if it is unavoidable."""
    if not isinstance(value, float) or not math.isfinite(value) or not (value == 0.0 or 1e-16 < abs(value) < 1e16):
        return str(value)
    return f"{value:.0f}" if value.is_integer() else f"{Decimal(repr(value)):f}"


def repr_value(value: object) -> str:
    """Return a value for a message. A huge integer is shortened."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "an integer of more than 64 bits"
    return format_json(value) if value is None or isinstance(value, bool | str) else repr(value)
