"""The values that a field of a body may have, where its type lists them; for errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from tailrace.api.nested_names import find_structs
from tailrace.errors import format_json

_INDEX = re.compile(r"\[[^\]]*\]")


def describe_values(schema: type[msgspec.Struct], path: str) -> str:
    """Return the listed values of the field at a path, as a part of a sentence; "" if its type lists none."""
    kinds: list[Any] = [schema]
    for name in _INDEX.sub("", path).split("."):
        kinds = [found for kind in kinds for found in iter_field_types(kind, name)]
    values = dict.fromkeys(value for kind in kinds for value in iter_values(kind))
    return "; it must be " + " or ".join(map(format_json, values)) if values else ""


def iter_field_types(kind: Any, name: str) -> Iterator[Any]:
    """Yield the types of a field of the structs that a value of this type is, or has in its lists."""
    for struct in find_structs(kind):
        config = struct.__struct_config__
        if config.tag_field == name:
            yield Literal[config.tag]
        yield from (field.type for field in msgspec.structs.fields(struct) if field.encode_name == name)


def iter_values(kind: Any) -> Iterator[Any]:
    """Yield the values that a type lists."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from iter_values(part)
