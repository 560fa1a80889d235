"""Writes the tables of docs/sampling.md and docs/api/sampling-fields.md from the declarations of SamplingParams' fields
and from the tables of other servers' fields: `python docs/write_fields.py`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. tests/test_docs.py checks that they are current.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from tailrace.api.aliases import RENAMED
from tailrace.api.schema.peers import HARMLESS, NOT_OFFERED
from tailrace.kernels.program import STAGES
from tailrace.params import FIELDS, VOIDS, SamplingParams
from tailrace.request.fields import KINDS, Field
from tailrace.request.options import Watermark
from tailrace.sampling.pipeline import EDITS, REFINEMENTS
from tailrace.sampling.slot import always

PAGES = [Path(__file__).with_name("sampling.md"), Path(__file__).parent / "api" / "sampling-fields.md"]
TABLE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
WORDS = {bool: "true, false", str: "text", int: "integer", float: "number"}


def edits() -> Iterator[tuple[str, ...]]:
    """The edits in order, with their fields."""
    yield "edit", "fields", "in the kernels"
    for name, method in EDITS.items():
        yield f"`{name}`", fields_of("edit", name), "no: falls back" if method.dense is always else "yes"


def refinements() -> Iterator[tuple[str, ...]]:
    """The refinements in order, with their fields."""
    yield "name", "fields", "in the kernels"
    some = SamplingParams(watermark=Watermark(kind="synthid", key=1))  # stages are made from parameters
    for name, method in REFINEMENTS.items():
        stage = None if method.stage is None else method.stage(some)
        where = "no: falls back" if stage is None else "yes" if STAGES[stage.kind].on_gpu else "CPU"
        yield f"`{name}`", fields_of("refinement", name), where


def fields() -> Iterator[tuple[str, ...]]:
    """Every field, by what sort of thing it changes."""
    yield "field", "what", "values", "neutral", "done by", "over HTTP"
    for kind, what in KINDS.items():
        yield f"**{kind}**", f"**{what}**", "", "", "", ""
        for field in FIELDS.values():
            if field.kind == kind:
                done_by = "sampler" if not field.instead else "text" if field.kind == "text" else "engine"
                http = {"same": "yes", "": "no", "converted": "own type"}.get(str(field.http), "yes")
                name = f"`{field.http_name}`" if field.http_name else http
                yield f"`{field.name}`", meaning(field), values(field), neutral(field), done_by, name


def renamed() -> Iterator[tuple[str, ...]]:
    """Other servers' names of fields."""
    yield "field", "other names"
    names: dict[str, list[str]] = {}
    for alias, name in RENAMED.items():
        names.setdefault(name, []).append(f"`{alias}`")
    yield from ((f"`{name}`", ", ".join(aliases)) for name, aliases in names.items())


def not_offered() -> Iterator[tuple[str, ...]]:
    """Other servers' fields that are refused, by the values that are accepted."""
    yield "accepted values", "fields"
    names: dict[str, list[str]] = {}
    for name, values in NOT_OFFERED.items():
        names.setdefault(", ".join(msgspec.json.encode(value).decode() for value in values), []).append(f"`{name}`")
    yield from ((f"`{values}`", ", ".join(sorted(fields))) for values, fields in names.items())


def harmless() -> Iterator[tuple[str, ...]]:
    """Other servers' fields that are accepted in silence."""
    yield ("fields",)
    yield (", ".join(f"`{name}`" for name in sorted(HARMLESS)),)


def fields_of(attribute: str, method: str) -> str:
    """The fields of a method."""
    return ", ".join(f"`{name}`" for name, field in FIELDS.items() if getattr(field, attribute) == method)


def meaning(field: Field) -> str:
    """What a field does, needs, and does not go with."""
    parts = [field.doc]
    if field.needs:
        parts.append("needs " + " or ".join(f"`{name}`" for name in field.needs))
    parts += [f"refused with {VOIDS[name][1].partition(',')[0].partition(':')[0]}" for name in field.voided_by]
    return "; ".join(parts)


def values(field: Field) -> str:
    """Which values a field may have."""
    if field.range is not None:
        return f"{'integer' if field.range.whole else 'number'} in {field.range}"
    entries = "" if field.entries is None else f", at most {field.entries:,}"
    return named(field.type) + entries


def named(kind: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part not in (type(None), Ellipsis)]
    if origin in (Union, UnionType):
        return named(parts[0])
    if origin is Literal:
        return ", ".join(parts)
    if origin is tuple and Ellipsis not in get_args(kind):
        return f"({', '.join(map(named, parts))})"
    if origin is tuple:
        return f"list of {named(parts[0])}"
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return f"{named(parts[0])} → {named(parts[1])}"
    return WORDS.get(kind) or ("record" if issubclass(kind, msgspec.Struct) else "any")


def neutral(field: Field) -> str:
    """The value at which a field does nothing."""
    if field.off:
        return field.off
    if field.default in ((), {}):
        return "none"
    if field.default is None or isinstance(field.default, bool):
        return {None: "none", True: "true", False: "false"}[field.default]
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def markdown(rows: Iterator[tuple[str, ...]]) -> str:
    """A table; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * (lines[0].count(" | ") + 1), *lines[1:]])


TABLES = {
    "edits": edits,
    "refinements": refinements,
    "fields": fields,
    "renamed": renamed,
    "not_offered": not_offered,
    "harmless": harmless,
}


def written(page: str) -> str:
    """The page with its tables as they must be."""
    return TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n{markdown(TABLES[found[1]]())}\n<!-- end -->", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path.read_text()))
