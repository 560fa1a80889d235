"""The door of an integration: a field that can't act inside an engine is refused by name, with the reason. So is a
name that would have no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tailrace.base.nearest import find_nearest
from tailrace.errors import ParameterError
from tailrace.integrations.field_values import read_value
from tailrace.params import FIELDS, SamplingParams, find_idle
from tailrace.sampling.processors import find_processor
from tailrace.sampling.validation import check_kind, checked_names

# names of fields at other servers, or of ours over HTTP
OTHER_NAMES = {
    other: name
    for name, field in FIELDS.items()
    for other in (*field.aliases, field.http_name)
    if other and other not in FIELDS
}
NEAR, NEARER = 0.75, 0.88  # the likeness of a misspelt name; the second where others may read the name
SHOWN = 100  # characters of a name in an error
# OpenAI's own; it changes the speed of an answer alone, and clients send it to every server
IGNORED = "prediction"


class FieldPlace(NamedTuple):
    """The names of fields at one place of an engine's request.

    - name: of the place.
    - engine: the engine that reads the request.
    - refused: field → why it can't act inside the engine.
    - theirs: a name → what to set instead, at another place.
    - read: the engine reads these other names at this place.
    """

    name: str
    engine: str
    refused: Mapping[str, str]
    theirs: Mapping[str, str] = {}
    read: Collection[str] = ()


def check_fields(
    params: SamplingParams, refused: Mapping[str, str], path: str, handled_by_caller: Collection[str] = ()
) -> None:
    """Raise ParameterError for the first field that is not neutral and is refused, and for arguments of other types.

    Args:
        refused: field → the reason. path: where it is refused, for the message. handled_by_caller: fields that are not
            refused, because the caller acts on them.
    """
    check_kind("params", params, SamplingParams)
    handled = checked_names("handled_by_caller", handled_by_caller)
    for name, reason in refused.items():
        if name not in handled and not params.neutral(name):
            raise ParameterError(f"{name} is refused by {path}: {reason}", name)


def check_served(params: SamplingParams, vocab_size: int) -> None:
    """Raise ParameterError for token ids outside of the model's vocabulary, and for processors that are not registered
    in this process."""
    params.check_vocab(vocab_size)
    for name in params.processors:
        find_processor(name)


def check_names(names: Iterable[str], place: FieldPlace, read_by_others: bool = False) -> None:
    """Raise ParameterError for the first name that would have no effect at this place.

    Args:
        read_by_others: somebody else's code may read names that tailrace does not know.
    """
    for name in names:
        if not isinstance(name, str):
            raise ParameterError(f"a name in {place.name} must be text, got {name!r:.100}", place.name)
        if text := explain_name(name, place, read_by_others):
            raise ParameterError(text, name)


def check_theirs(names: Iterable[str], place: FieldPlace) -> None:
    """Raise ParameterError for the first name that belongs to another place."""
    for name in names:
        if name in place.theirs:
            raise ParameterError(f"{name} can't be had in {place.name}: set {place.theirs[name]}", name)


def list_asking(given: Mapping[str, Any]) -> list[str]:
    """Return the names by which somebody asks for a field of tailrace's, where others may read names.

    Some clients send all fields that they know. So a neutral value asks for nothing, and neither does the field of a
    method that is off. A wrong value asks.
    """
    meant = {name: field for name in given if name != IGNORED and (field := find_meant(name))}
    values: dict[str, Any] = {}
    asking = []
    for name, field in meant.items():
        try:
            if given[name] is not None:
                values[field] = FIELDS[field].check_value(read_value(FIELDS[field], given[name]))
        except ParameterError:
            asking.append(name)
    acting = {field for field, value in values.items() if not FIELDS[field].neutral(value)} - find_idle(values, values)
    return asking + [name for name, field in meant.items() if field in acting and name not in asking]


def explain_name(name: str, place: FieldPlace, read_by_others: bool) -> str:
    """Return why a name would have no effect; "" if it acts, or if somebody else may read it.

    Raises:
        ParameterError: the name belongs to another place.
    """
    field, shown = name if name in FIELDS else OTHER_NAMES.get(name, ""), name[:SHOWN]
    if field in place.refused:
        return f"{shown} can't be had inside {place.engine}: {place.refused[field]}"
    check_theirs([name], place)
    if name in FIELDS or name in place.read:
        return ""
    if near := field or find_near(name, NEARER if read_by_others else NEAR):
        meant = place.theirs.get(near, near)
        refusal = f" It can't be had inside {place.engine}: {place.refused[near]}" if near in place.refused else ""
        return f"there is no field {shown} in {place.name}; did you mean {meant}?{refusal}"
    return "" if read_by_others else f"{shown} has no effect: neither tailrace nor {place.engine} reads it there"


def find_meant(name: str) -> str:
    """Return the field that a name means where others may read names; "" if it means none."""
    return name if name in FIELDS else find_near(name, NEARER)


def find_near(name: str, cutoff: float) -> str:
    """Return the field whose name, here or at another server, is nearest to this name; "" if none is near."""
    near = find_nearest(name, [*FIELDS, *OTHER_NAMES], cutoff)
    return OTHER_NAMES.get(near, near)
