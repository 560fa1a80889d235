"""What the page knows of the fields of a request, made from their declarations: GET /page/fields.json. Knows no field
by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from tailrace.api.presets import PRESETS
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.schema.completions import CompletionRequest
from tailrace.params import FIELDS, VOIDS, voids_of
from tailrace.request.fields import KINDS, Field, Kind
from tailrace.request.method_order import REFINEMENT_ORDER, STEPS

# What a person gives: a switch, a number, one of several words, texts, token ids, text → number, or JSON.
Form = Literal["switch", "integer", "number", "choice", "text", "texts", "ids", "map", "json"]
PLAIN_FORMS: dict[Any, Form] = {bool: "switch", int: "integer", float: "number", str: "text"}
ENDPOINTS = {"chat": ChatRequest, "completion": CompletionRequest}


class PageField(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field, as a request over HTTP has it.

    - doc: one sentence.
    - kind: a key of PageFields.kinds.
    - method: the sampler's method, by its name in a record.
    - forms: endpoint → what a person gives; an endpoint without the field is left out.
    - choices: the values of a "choice".
    - neutral: the value at which the field does nothing; None: leaving it out.
    - off: a key of OFF, if more values than the default are off.
    - low, high: the least and the largest number. low_in, high_in: whether these are allowed themselves.
    - needs: the field has no effect without one of these fields.
    - voided_by: fields that take its effect away.
    """

    name: str
    doc: str
    kind: str
    forms: dict[str, Form]
    method: str = ""
    choices: tuple[str, ...] = ()
    neutral: Any = None
    off: str = ""
    low: float | None = None
    high: float | None = None
    low_in: bool = True
    high_in: bool = True
    entries: int | None = None
    needs: tuple[str, ...] = ()
    voided_by: tuple[str, ...] = ()


class PageFields(msgspec.Struct, frozen=True):
    """All that the page knows of the fields.

    - fields: in the order of docs/sampling.md.
    - kinds: kind → what such fields do.
    - presets: name → fields.
    - defaults: model → fields that a request may leave out.
    - voids: what takes an effect away → in words.
    - refinements: names of methods in the default order.
    - titles: name of a record's step → its title, if the name does not give it.
    - resumable: a request's events can be asked for again.
    """

    fields: list[PageField]
    kinds: Mapping[Kind, str]
    presets: dict[str, dict[str, Any]]
    defaults: dict[str, dict[str, float | int]]
    voids: dict[str, str]
    refinements: list[str]
    titles: dict[str, str]
    resumable: bool


def page_fields(defaults: dict[str, dict[str, float | int]], resumable: bool) -> PageFields:
    """All fields that a request may give. defaults: by model. resumable: see PageFields."""
    voids = {name: words for name, (_, words) in VOIDS.items()}
    titles = {name: entry.title for name, entry in STEPS.items() if entry.title}
    refinements = [entry.name for entry in REFINEMENT_ORDER]
    return PageFields(shown_fields(), KINDS, PRESETS, defaults, voids, refinements, titles, resumable)


@cache
def shown_fields() -> list[PageField]:
    """By kind, in the order of the declarations."""
    types = {endpoint: get_type_hints(kind, include_extras=True) for endpoint, kind in ENDPOINTS.items()}
    return [
        found
        for kind in KINDS
        for field in FIELDS.values()
        if field.kind == kind and (found := shown_field(field, types)) is not None
    ]


def shown_field(field: Field, types: Mapping[str, Mapping[str, Any]]) -> PageField | None:
    """One field; None if no endpoint has it. types: endpoint → the types of its fields."""
    name = field.http_name or field.name
    here = {endpoint: fields[name] for endpoint, fields in types.items() if name in fields}
    if not here:
        return None
    forms: dict[str, Form] = {endpoint: form_of(kind) for endpoint, kind in here.items()}
    words = get_args(without_none(next(iter(here.values())))) if "choice" in forms.values() else ()
    numeric = field.range is not None and set(forms.values()) <= {"integer", "number"}
    limits = field.range if numeric else None
    return PageField(
        name=name,
        doc=field.doc,
        kind=field.kind,
        forms=forms,
        method=field.edit or field.refinement,
        choices=words,
        neutral=find_neutral_value(field, numeric or not field.http_name),
        off=field.off,
        low=None if limits is None else limits.low,
        high=None if limits is None else limits.high,
        low_in=limits is None or limits.low_in,
        high_in=limits is None or limits.high_in,
        entries=field.entries,
        needs=tuple(FIELDS[needed].http_name or needed for needed in field.needs if FIELDS[needed].http != ""),
        voided_by=voids_of(field),
    )


def find_neutral_value(field: Field, same: bool) -> Any:
    """The value at which the field does nothing, as JSON has it; None: leave it out. same: it has the same name over
    HTTP."""
    if not same or field.default in ((), {}):
        return None
    return field.default


def form_of(kind: Any) -> Form:
    """What a person gives for a field of this type."""
    kind = without_none(kind)
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not Ellipsis]
    if origin is Literal:
        return "choice"
    if origin in (Union, UnionType):
        return "texts" if set(parts) == {str, list[str]} else "text" if str in parts else "json"
    if origin in (list, tuple) and len(parts) == 1:
        inner = without_notes(parts[0])
        return "texts" if inner is str else "ids" if inner is int else "json"
    if origin is dict and parts == [str, float]:
        return "map"
    return PLAIN_FORMS.get(kind, "json")


def without_none(kind: Any) -> Any:
    """Return a type without None and without its annotations."""
    kind = without_notes(kind)
    if get_origin(kind) in (Union, UnionType):
        rest = [part for part in get_args(kind) if part is not type(None)]
        return without_notes(Union[tuple(rest)])  # noqa: UP007 — of a list
    return kind


def without_notes(kind: Any) -> Any:
    """Return a type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
