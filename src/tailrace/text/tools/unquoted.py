"""Arguments written one by one without quotes (Qwen3-Coder, GLM) or as keywords (Python), as a grammar: which schemas can be said so.

A parameter whose schema wants a string and nothing else (null may be an alternative) is bare text; any other is JSON, strings in it quoted.
That is how values.json_of reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tailrace.errors import ParameterError
from tailrace.text.tools.functions import Function
from tailrace.text.tools.script import ANY, Script, exactly, quoted, without
from tailrace.text.tools.values import kinds_of

# of the object of arguments: what ties parameters to each other can't be said where they stand one by one
TIES = frozenset({
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "propertyNames", "minProperties", "maxProperties",
    "dependentRequired", "dependentSchemas", "dependencies",
})  # fmt: skip
BEYOND = frozenset({"$ref", "allOf", "not", "if"})  # of one string
ASCII = {"d": "[0-9]", "w": "[0-9A-Za-z_]"}  # what JSON schema means, where Rust's patterns take all of Unicode


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
    if nested and schema.keys() & {"enum", "const", "pattern", "minLength", "maxLength"}:
        raise unsayable(field, "anyOf beside other keywords")
    for choice in nested:
        if not isinstance(choice, dict):
            raise unsayable(field, f"{str(choice).lower()} as an alternative")
        yield from alternatives(choice, field, ends)
    if nested:
        return
    if "enum" in schema or "const" in schema:
        yield from map(quoted, named(schema, field, ends))
        return
    kinds = kinds_of(schema)
    if "string" in kinds:
        parts = [lengths(schema), *([pattern(schema["pattern"], field)] if "pattern" in schema else [])]
        yield " & ".join(parts)
    if "null" in kinds:
        yield '"null"'


def named(schema: Mapping[str, Any], field: str, ends: tuple[str, ...]) -> list[str]:
    """The texts of an enum or a const."""
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    texts = ["null" if value is None else value for value in values]
    if not texts or any(not isinstance(text, str) or any(end in text for end in ends) for text in texts):
        raise unsayable(field, "an enum of other than strings, or with a tag in one")
    return texts


def lengths(schema: Mapping[str, Any]) -> str:
    """minLength and maxLength."""
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if not low and high is None:
        return f"/{ANY}/"
    return f"/(?s:.{{{low},{'' if high is None else int(high)}}})/"


def pattern(source: Any, field: str) -> str:
    """A pattern of JSON schema, which may match anywhere in the text, as one of the whole text."""
    inner = source[1:-1] if isinstance(source, str) else ""
    if not isinstance(source, str) or re.search(r"(?<!\\)(?<!\[)\^|(?<!\\)\$", inner):
        raise unsayable(field, f"the pattern {source!r:.100}")
    begins, ends = source.startswith("^"), source.endswith("$") and not source.endswith("\\$")
    core = source[begins : len(source) - ends]
    if (begins or ends) and "|" in core and not (core.startswith("(") and core.endswith(")") and core.count("(") == 1):
        raise unsayable(field, f"the pattern {source!r:.100}")
    core = re.sub(r"\\(.)|/", lambda found: "\\/" if found[0] == "/" else ASCII.get(found[1], found[0]), core)
    return f"/{'' if begins else ANY}({core}){'' if ends else ANY}/"


def unsayable(where: str, what: str) -> ParameterError:
    """That this can't be enforced in the model's format."""
    return ParameterError(f"tools: {where}: {what} can't be enforced in the way this model writes tool calls", "tools")
