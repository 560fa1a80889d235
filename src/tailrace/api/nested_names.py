"""The objects within a body: schemas that take no unknown names there, and the unknown names of a body."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Union, cast, get_args, get_origin

import msgspec

Structs = tuple[type[msgspec.Struct], ...]
NAMES = "names"  # in the metadata of an object without a schema: the structs whose names it may have


class Nested(NamedTuple):
    """A name in an object that nobody knows. known: the names that the object may have."""

    place: str
    name: str
    known: tuple[str, ...]


def named_by(*structs: type[msgspec.Struct]) -> msgspec.Meta:
    """Return what annotates the type of an object that stays as it is. It may have the names of one of the structs."""
    return msgspec.Meta(extra={NAMES: structs})


def find_structs(kind: Any) -> Structs:
    """Return the structs that a value of this type is, or has in its lists."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return (kind,)
    for meta in getattr(kind, "__metadata__", ()):
        if structs := (meta.extra or {}).get(NAMES):
            return structs
    return tuple(struct for part in get_args(kind) for struct in find_structs(part))


@cache
def list_fields(struct: type[msgspec.Struct]) -> Mapping[str, Structs]:
    """Return the names that an object of this struct may have, each with the structs of its value. A struct's
    `OTHERS` are known names without an effect."""
    fields = {field.encode_name: find_structs(field.type) for field in msgspec.structs.fields(struct)}
    others: set[str] = set(getattr(struct, "OTHERS", ())) | (
        {tag} if (tag := struct.__struct_config__.tag_field) else set()
    )
    return fields | dict.fromkeys(sorted(others), ())


def choose_struct(structs: Structs, value: Mapping[str, Any]) -> type[msgspec.Struct] | None:
    """Return which of the structs the object is, by its tag: the first one without a tag, None with an unknown one."""
    if (name := structs[0].__struct_config__.tag_field) is None or name not in value:
        return structs[0]
    return next((struct for struct in structs if struct.__struct_config__.tag == value[name]), None)


def collect_unknown(structs: Structs, value: Any, place: str, found: dict[tuple[Any, str], Nested], most: int) -> None:
    """Add the unknown names of objects to `found`: of each struct and name the first place, and at most `most`."""
    if isinstance(value, list):
        for i, part in enumerate(cast(list[Any], value)):
            collect_unknown(structs, part, f"{place}[{i}]", found, most)
    if not isinstance(value, dict) or (struct := choose_struct(structs, cast(dict[str, Any], value))) is None:
        return
    known = list_fields(struct)
    for name, inner in cast(dict[str, Any], value).items():
        if (nested := known.get(name)) is None:
            if len(found) < most and (struct, name) not in found:
                found[struct, name] = Nested(place, name, tuple(known))
        elif nested and isinstance(inner, list | dict):
            collect_unknown(nested, inner, f"{place}.{name}", found, most)


def has_untyped(kind: Any) -> bool:
    """Return whether a value of this type is an object without a schema, or has one in its lists."""
    marked = any((meta.extra or {}).get(NAMES) for meta in getattr(kind, "__metadata__", ()))
    return marked or any(map(has_untyped, get_args(kind)))


def is_strict(struct: type[msgspec.Struct], above: Structs = ()) -> bool:
    """Return whether a struct takes no unknown names, nor do the structs within it. above: those it is within."""
    if not struct.__struct_config__.forbid_unknown_fields:
        return False
    inner = [one for structs in list_fields(struct).values() for one in structs if one not in (struct, *above)]
    return all(is_strict(one, (struct, *above)) for one in inner)


def make_strict(struct: type[msgspec.Struct], fields: list[tuple[Any, ...]], made: dict[Any, Any]) -> Any:
    """Return a form of the struct that takes no unknown names, nor do the structs within it.

    Args:
        fields: that it has in addition, as msgspec.defstruct takes them. made: struct → its strict form, so far.
    """
    strict = msgspec.defstruct(struct.__name__, fields, bases=(struct,), kw_only=True, forbid_unknown_fields=True)
    made[struct] = strict  # a struct may hold itself
    for field in msgspec.structs.fields(struct):
        if find_structs(field.type):
            strict.__annotations__[field.name] = make_strict_type(field.type, made)  # read with the first decoder
    return strict


def make_strict_type(kind: Any, made: dict[Any, Any]) -> Any:
    """Return a type whose structs take no unknown names; see make_strict."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind if is_strict(kind) else made.get(kind) or make_strict(kind, [], made)
    parts = get_args(kind)
    if hasattr(kind, "__metadata__") or not parts or not find_structs(kind):
        return kind
    strict = tuple(make_strict_type(part, made) for part in parts)
    return list[strict] if get_origin(kind) is list else Union[strict]  # noqa: UP007
