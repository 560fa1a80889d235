"""The grammar of arguments that are written one by one: without quotes (Qwen3-Coder, GLM) or as keywords (Python).
Refuses schemas that can't be expressed this way.

A parameter whose schema allows only strings (and perhaps null) is bare text. Any other parameter is JSON, with strings
quoted. values.json_of reads them the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.ecma import enclosing
from tailrace.grammar.formats import LONGEST, PATTERNS, REFUSED
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import ANY, GrammarWriter, escaped, quoted, text_without
from tailrace.text.tool_parsers.resolve import SHARED, kinds_of, simplified

# keywords of the arguments object that tie parameters to each other, which a list of separate parameters can't express
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
        raise not_expressible(function.name, sorted(ties)[0])
    shared = {key: schema[key] for key in SHARED if key in schema}
    properties, required = schema["properties"], schema.get("required", [])
    for name in dict.fromkeys([*properties, *required]):
        own = simplified(properties.get(name, {}), schema)
        if own is not False:
            yield name, shared | (own if isinstance(own, dict) else {}), name in required
        elif name in required:
            raise not_expressible(function.name, f"the parameter {name!r:.100}, of which no value fits,")


def parameter_sequence(
    writer: GrammarWriter, function: Function, write: Callable[[str, dict[str, Any], str], str]
) -> str:
    """All parameters in order; those that are not required are optional. write: (name, schema, suffix for rule names) →
    grammar."""
    place = writer.place(function)
    parts: list[str] = []
    for i, (name, schema, required) in enumerate(parameters(function)):
        rule = writer.rule(f"arg_{place}_{i}", write(name, schema, f"{place}_{i}"))
        parts.append(rule if required else f"{rule}?")
    return " ".join(parts) or '""'


def is_text(schema: Mapping[str, Any]) -> bool:
    """True if the values are bare text."""
    kinds = kinds_of(schema)
    return bool(kinds) and kinds <= {"string", "null"}


def text_terminal(
    writer: GrammarWriter, schema: Mapping[str, Any], id: str, field: str, ends: tuple[str, ...], end: str
) -> str:
    """Bare text that contains none of `ends`, and `end` after it.

    Raises:
        ParameterError: the schema demands what a terminal can't express.
    """
    texts = writer.rule(f"SAID_{id}", " | ".join(alternatives(schema, field, ends)))
    clean = writer.rule(f"CLEAN_{id}", text_without(*ends))
    whole = writer.rule(f"TEXT_{id}", f"{texts} & {clean}")
    text, rest = writer.head_of(end)
    if not text:
        return f"{whole} {rest}"
    ended = writer.rule(f"ENDED_{id}", f"{whole} {quoted(text)}")
    if rest:  # the token behind it ends the text
        return f"{ended} {rest}"
    return writer.rule(f"VALUE_{id}", f"{ended} & ~/{ANY}({'|'.join(map(escaped, ends))})(?s:.+)/")


def alternatives(schema: Mapping[str, Any], field: str, ends: tuple[str, ...]) -> Iterator[str]:
    """The alternatives for the text, as parts of a terminal."""
    if beyond := BEYOND & schema.keys():
        raise not_expressible(field, sorted(beyond)[0])
    nested = [choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ())]
    if nested and (
        schema.keys() & {"enum", "const", "pattern", "minLength", "maxLength"} or {"anyOf", "oneOf"} <= schema.keys()
    ):
        raise not_expressible(field, "anyOf beside other keywords")
    if any(not isinstance(choice, dict) for choice in nested):
        raise not_expressible(
            field, f"{str(next(c for c in nested if not isinstance(c, dict))).lower()} as an alternative"
        )
    if "oneOf" in schema and overlapping(nested):
        raise not_expressible(field, "oneOf of which a text may fit two")
    for choice in nested:
        kinds = kinds_of(choice) & kinds_of({"type": schema.get("type", ["string", "null"])})
        if kinds:
            yield from alternatives(choice | {"type": sorted(kinds)}, field, ends)
    if nested:
        return
    if "enum" in schema or "const" in schema:
        beside = "".join(f" & {one}" for one in patterns(schema, field))
        yield from (quoted(text) + (beside if bound else "") for text, bound in listed_texts(schema, field, ends))
        return
    kinds = kinds_of(schema)
    if "string" in kinds:
        yield " & ".join([lengths(schema), *patterns(schema, field)])
    if "null" in kinds:
        yield '"null"'


def overlapping(choices: list[dict[str, Any]]) -> bool:
    """True if a text may fit two of the choices, judged by their types and listed values."""
    kinds = [kind for choice in choices for kind in kinds_of(choice)]
    if len(kinds) == len(set(kinds)):
        return False
    values = [value for choice in choices for value in listed(choice)]
    return not all(map(listed, choices)) or len(values) != len(set(values))


def listed(schema: Mapping[str, Any]) -> list[Any]:
    """The values of an enum and a const."""
    found = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []
    return [value for value in found if "const" not in schema or value == schema["const"]]


def listed_texts(schema: Mapping[str, Any], field: str, ends: tuple[str, ...]) -> list[tuple[str, bool]]:
    """The texts of an enum or a const that also fit the other keywords, and whether each is a string (which a pattern
    restricts)."""
    values, kinds = listed(schema), kinds_of(schema)
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if any(
        (value is not None and not isinstance(value, str)) or any(end in (value or "") for end in ends)
        for value in values
    ):
        raise not_expressible(field, "an enum of other than strings, or with a tag in one")
    strings = [
        v
        for v in values
        if isinstance(v, str) and "string" in kinds and low <= len(v) and (high is None or len(v) <= high)
    ]
    nulls = [v for v in values if v is None and "null" in kinds]
    if nulls and "null" in strings:
        raise not_expressible(field, 'an enum of null and "null"')
    if not strings and not nulls:
        raise not_expressible(field, "an enum of which no value fits")
    return [(text, True) for text in strings] + [("null", False) for _ in nulls[:1]]


def lengths(schema: Mapping[str, Any]) -> str:
    """minLength and maxLength as a pattern."""
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if not low and high is None:
        return f"/{ANY}/"
    return f"/(?s:.{{{low},{'' if high is None else int(high)}}})/"


def patterns(schema: Mapping[str, Any], field: str) -> Iterator[str]:
    """`pattern` and `format` as patterns of the whole text. An unknown format is an annotation."""
    name = schema.get("format")
    if name is not None and not isinstance(name, str):
        raise not_expressible(field, "a format that is no text")
    if name in REFUSED:
        raise not_expressible(field, f"the format {name}")
    if name in PATTERNS:
        yield f"/{enclosing(f'^(?:{PATTERNS[name]})$')}/"
    if name in LONGEST:
        yield f"/(?s:.{{0,{LONGEST[name]}}})/"
    if "pattern" in schema:
        try:
            yield f"/{enclosing(schema['pattern'])}/"
        except UnsupportedError as error:
            raise not_expressible(field, str(error)) from error


def not_expressible(where: str, what: str) -> ParameterError:
    """The error for a schema that the model's format can't express."""
    return ParameterError(f"tools: {where}: {what} can't be enforced in the way this model writes tool calls", "tools")
