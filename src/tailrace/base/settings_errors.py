"""Words for what is wrong with a setting: its name in a file, its flag, its variable, and the values that it may have.
Knows no single setting except those whose flags are named otherwise."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from tailrace.base.nearest import suggest_name
from tailrace.config import SECTIONS, GrammarConfig
from tailrace.errors import ConfigError

FLAGS: dict[str, str] = {  # where the field's own name would mislead
    "model.name": "--served-model-name",
    "speculation.lookup": "--draft-lookup",
    "speculation.model": "--draft-model",
    "speculation.weights": "--draft-weights",
    "speculation.quantize": "--draft-quantize",
    "speculation.adaptive": "--adaptive-drafts",
    "speculation.rule": "--draft-rule",
    "speculation.layers": "--draft-layers",
    "speculation.cache_gib": "--draft-cache-gib",
    **{f"grammar.{field}": f"--grammar-{field.replace('_', '-')}" for field in GrammarConfig.__struct_fields__},
}
PREFIX = "TAILRACE_"
SECRETS = ("api_key", "api_keys", "encryption_key")  # fields whose values no message shows
KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
PLACE = re.compile(r"^(.*?)(?: - at `\$(.*)`)?$", re.DOTALL)  # the reason and the place of msgspec's message
STEPS = re.compile(r"\.(\w+)|\[\.\.\.\]")  # a field, or an unnamed entry of a table
FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


def name_flag(section: str, field: str) -> str:
    """Return the flag of a setting."""
    return FLAGS.get(f"{section}.{field}", "--" + field.replace("_", "-"))


def name_variable(section: str, field: str) -> str:
    """Return the variable of the environment of a setting."""
    return f"{PREFIX}{section}_{field}".upper()


def convert_sections(sections: Mapping[str, Any], kind: type[msgspec.Struct], of: tuple[str, ...] = ()) -> Any:
    """Return the sections as `kind`, whose fields are sections. of: names that stand before a section's name.

    Raises:
        ConfigError: a section or a field is unknown, or a value is out of range; the message names the field.
    """
    try:
        return msgspec.convert(sections, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(explain_error(str(error), sections, kind, of)) from error


def explain_error(text: str, given: Any, hint: Any, path: tuple[str, ...]) -> str:
    """Return msgspec's message in words about settings. given: the value at this path, hint: its type."""
    found = PLACE.fullmatch(text)
    assert found is not None
    reason, place = found[1], found[2] or ""
    for step in STEPS.finditer(place):
        if step[1] is None:
            name, text = find_bad_entry(given, get_args(hint)[1])
            return explain_error(text, given[name], get_args(hint)[1], (*path, name))
        path, given, hint = (*path, step[1]), given[step[1]], get_type_hints(hint, include_extras=True)[step[1]]
    if field := FIELD.fullmatch(reason):
        table = f"[{'.'.join(path)}]"
        if field[1].startswith("missing"):
            return f"there is no setting {field[2]!r:.80} in {table}, and it needs one"
        known = hint.__struct_fields__
        return f"there is no setting {field[2]!r:.80} in {table}{suggest_name(field[2], known)}: {', '.join(known)}"
    allowed, near = describe_values(hint, given)
    got = f"a {type(given).__name__}" if path[-1] in SECRETS else f"{given!r:.80}"
    return f"{'.'.join(path)}{list_names(path)} must be {allowed}, got {got}{near}"


def find_bad_entry(table: Mapping[str, Any], kind: Any) -> tuple[str, str]:
    """Return the name of the table's first entry that is not of this type, and msgspec's message about the entry."""
    for name, entry in table.items():
        try:
            msgspec.convert(entry, kind, strict=False)
        except msgspec.ValidationError as error:
            return name, str(error)
    raise AssertionError("msgspec has found an entry")


def list_names(path: tuple[str, ...]) -> str:
    """Return the flag and the variable of a setting in brackets; "" for a path that has none."""
    if len(path) < 2 or path[-2] not in SECTIONS:
        return ""
    return f" ({name_flag(*path[-2:])}, {name_variable(*path[-2:])})"


def describe_values(hint: Any, value: object) -> tuple[str, str]:
    """Return the values that a field's type allows, in words, and a hint at the one that was perhaps meant."""
    if get_origin(hint) is Literal:
        names = [str(name) for name in get_args(hint)]
        return f"one of {', '.join(names)}", suggest_name(str(value), names)
    hint = next((part for part in get_args(hint) if get_origin(part) is Annotated), hint)  # of a field that may be None
    plain, limits = (get_args(hint)[0], get_args(hint)[1]) if get_origin(hint) is Annotated else (hint, None)
    kind = "a table" if isinstance(plain, type) and issubclass(plain, msgspec.Struct) else KINDS.get(plain, KINDS[str])
    if limits is None:
        return kind, ""
    if limits.gt is not None:
        return f"{kind} above {limits.gt}", ""
    if limits.le is None or limits.le == sys.float_info.max:
        return f"{kind} of at least {limits.ge}", ""
    return f"{kind} in [{limits.ge}, {limits.le}]", ""
