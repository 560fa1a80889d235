"""Arguments written one by one without quotes (Qwen3-Coder, GLM) or as keywords (Python), as a grammar: which schemas can be said so.

A parameter whose schema wants a string and nothing else (null may be an alternative) is bare text; any other is JSON, strings in it quoted.
That is how values.json_of reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.ecma import enclosing
from tailrace.grammar.formats import LONGEST, PATTERNS, REFUSED
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.script import ANY, Script, exactly, quoted, without
from tailrace.text.tool_parsers.values import kinds_of

# of the object of arguments: what ties parameters to each other can't be said where they stand one by one
TIES = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
    }
)
BEYOND = frozenset({"$ref", "allOf", "not", "if"})  # of one string


def parameters(function: Function) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each parameter's name, its schema as a document of its own, and whether it is required.

    Raises:
        ParameterError: the schema ties parameters to each other.
    """
    schema = function.parameters
    if ties := TIES & schema.keys():
        raise unsayable(function.name, sorted(ties)[0])
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    properties, required = schema["properties"], schema.get("required", [])
    for name in dict.fromkeys([*properties, *required]):
        own = properties.get(name, {})
        if own is not False:
            yield name, shared | (own if isinstance(own, dict) else {}), name in required
        elif name in required:
            raise unsayable(function.name, f"the parameter {name!r:.100}, of which no value fits,")


def sequence(script: Script, function: Function, write: Callable[[str, dict[str, Any], str], str]) -> str:
    """All parameters in their order, those that are not required perhaps. `write`: name, schema, a suffix for rules → how one is said."""
    place = script.place(function)
    parts: list[str] = []
    for i, (name, schema, required) in enumerate(parameters(function)):
        rule = script.rule(f"arg_{place}_{i}", write(name, schema, f"{place}_{i}"))
        parts.append(rule if required else f"{rule}?")
    return " ".join(parts) or '""'


def is_text(schema: Mapping[str, Any]) -> bool:
    """Its values are bare text."""
    kinds = kinds_of(schema)
    return bool(kinds) and kinds <= {"string", "null"}


def text(script: Script, schema: Mapping[str, Any], id: str, field: str, ends: tuple[str, ...], end: str) -> str:
    """Bare text and what ends it (`end`, if that is text), as a terminal; none of `ends` stands in it.

    Raises:
        ParameterError: the schema wants more of the string than can be said.
    """
    said = script.rule(f"SAID_{id}", " | ".join(alternatives(schema, field, ends)))
    clean = script.rule(f"CLEAN_{id}", without(*ends))
    whole = script.rule(f"TEXT_{id}", f"{said} & {clean}")
    if not end:
        return whole
    ended = script.rule(f"ENDED_{id}", f"{whole} {quoted(end)}")
    return script.rule(f"VALUE_{id}", f"{ended} & ~/{ANY}({'|'.join(map(exactly, ends))})(?s:.+)/")


def alternatives(schema: Mapping[str, Any], field: str, ends: tuple[str, ...]) -> Iterator[str]:
    """What the text may be, as parts of a terminal."""
    if beyond := BEYOND & schema.keys():
        raise unsayable(field, sorted(beyond)[0])
    nested = [choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ())]
    if nested and (
        schema.keys() & {"enum", "const", "pattern", "minLength", "maxLength"} or {"anyOf", "oneOf"} <= schema.keys()
    ):
        raise unsayable(field, "anyOf beside other keywords")
    if any(not isinstance(choice, dict) for choice in nested):
        raise unsayable(field, f"{str(next(c for c in nested if not isinstance(c, dict))).lower()} as an alternative")
    if "oneOf" in schema and overlapping(nested):
        raise unsayable(field, "oneOf of which a text may fit two")
    for choice in nested:
        kinds = kinds_of(choice) & kinds_of({"type": schema.get("type", ["string", "null"])})
        if kinds:
            yield from alternatives(choice | {"type": sorted(kinds)}, field, ends)
    if nested:
        return
    if "enum" in schema or "const" in schema:
        beside = "".join(f" & {one}" for one in patterns(schema, field))
        yield from (quoted(text) + (beside if bound else "") for text, bound in named(schema, field, ends))
        return
    kinds = kinds_of(schema)
    if "string" in kinds:
        yield " & ".join([lengths(schema), *patterns(schema, field)])
    if "null" in kinds:
        yield '"null"'


def overlapping(choices: list[dict[str, Any]]) -> bool:
    """A text may fit two of them, as far as their types and listed values tell."""
    kinds = [kind for choice in choices for kind in kinds_of(choice)]
    if len(kinds) == len(set(kinds)):
        return False
    values = [value for choice in choices for value in listed(choice)]
    return not all(map(listed, choices)) or len(values) != len(set(values))


def listed(schema: Mapping[str, Any]) -> list[Any]:
    """The values of an enum and a const."""
    found = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []
    return [value for value in found if "const" not in schema or value == schema["const"]]


def named(schema: Mapping[str, Any], field: str, ends: tuple[str, ...]) -> list[tuple[str, bool]]:
    """The texts of an enum or a const that fit what stands beside it, and whether each is a string, which a pattern binds."""
    values, kinds = listed(schema), kinds_of(schema)
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if any(
        (value is not None and not isinstance(value, str)) or any(end in (value or "") for end in ends)
        for value in values
    ):
        raise unsayable(field, "an enum of other than strings, or with a tag in one")
    strings = [
        v
        for v in values
        if isinstance(v, str) and "string" in kinds and low <= len(v) and (high is None or len(v) <= high)
    ]
    nulls = [v for v in values if v is None and "null" in kinds]
    if nulls and "null" in strings:
        raise unsayable(field, 'an enum of null and "null"')
    if not strings and not nulls:
        raise unsayable(field, "an enum of which no value fits")
    return [(text, True) for text in strings] + [("null", False) for _ in nulls[:1]]


def lengths(schema: Mapping[str, Any]) -> str:
    """minLength and maxLength."""
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if not low and high is None:
        return f"/{ANY}/"
    return f"/(?s:.{{{low},{'' if high is None else int(high)}}})/"


def patterns(schema: Mapping[str, Any], field: str) -> Iterator[str]:
    """What a pattern and a format make of the whole text. A format that is unknown is an annotation."""
    name = schema.get("format")
    if name is not None and not isinstance(name, str):
        raise unsayable(field, "a format that is no text")
    if name in REFUSED:
        raise unsayable(field, f"the format {name}")
    if name in PATTERNS:
        yield f"/{enclosing(f'^(?:{PATTERNS[name]})$')}/"
    if name in LONGEST:
        yield f"/(?s:.{{0,{LONGEST[name]}}})/"
    if "pattern" in schema:
        try:
            yield f"/{enclosing(schema['pattern'])}/"
        except UnsupportedError as error:
            raise unsayable(field, str(error)) from error


def unsayable(where: str, what: str) -> ParameterError:
    """That this can't be enforced in the model's format."""
    return ParameterError(f"tools: {where}: {what} can't be enforced in the way this model writes tool calls", "tools")
