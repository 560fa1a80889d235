"""Grammar of arguments that are written one by one: without quotes (Qwen3-Coder, GLM) or as keywords (Python).

A parameter whose schema allows only strings (and perhaps null) is bare text. Any other parameter is JSON, with quoted
strings. values.json_of reads parameters in the same way. A schema that can't be expressed this way is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.ecma import enclose_pattern
from tailrace.grammar.formats import LONGEST, PATTERNS, REFUSED
from tailrace.text.tool_parsers.grammar_writer import ANY, GrammarWriter, quote_literal
from tailrace.text.tool_parsers.parameter_list import not_expressible
from tailrace.text.tool_parsers.resolve import kinds_of

MAX_LENGTH = 1_000  # of a counted text; each character takes several of the matcher's 20,000 states
BEYOND = frozenset({"$ref", "allOf", "not", "if"})  # of one string; the grammar can't express these keywords


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return True if the values are bare text."""
    kinds = kinds_of(schema)
    return bool(kinds) and kinds <= {"string", "null"}


def without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the texts, from a schema that allows texts and null."""
    text = {**schema, "type": "string"}
    if "enum" in text:
        text["enum"] = [value for value in text["enum"] if value is not None]
    for key in ("anyOf", "oneOf"):
        if key in text:
            text[key] = [choice for choice in text[key] if not is_text(choice) or "string" in kinds_of(choice)]
    return text


class Bounds(NamedTuple):
    """A pattern of what a text can't hold.

    - `id`: a suffix for the names of rules.
    - `edges`: a terminal that the whole text must match, or the empty string.
    """

    pattern: str
    id: str = "0"
    edges: str = ""

    def write_outside(self, writer: GrammarWriter, closed: bool) -> str:
        """Return a terminal of texts with their tails that hold no match. `closed`: a match may be at the end.

        The terminal refuses any bytes after a match, not any characters. With characters, a matcher would have to prove
        that no text of any length ends within a character.
        """
        name, bytes = ("BYTES", '~(/[a&&b]/ | "")') if closed else ("ANY_BYTES", "~/[a&&b]/")
        return f"~(/{ANY}({self.pattern})/ {writer.rule(name, bytes)})"


class Tail(NamedTuple):
    """The grammar after a text.

    - `pattern`: the part that belongs to the text's terminal.
    - `rest`: the grammar after that part.
    - `closed`: the pattern of forbidden texts matches the text with its tail, at the end.
    """

    pattern: str
    rest: str
    closed: bool


def text_terminals(
    writer: GrammarWriter, schema: Mapping[str, Any], id: str, field: str, bounds: Bounds, tails: Mapping[str, Tail]
) -> dict[str, str]:
    """Return the grammar of a bare text with each of the tails.

    Raises:
        ParameterError: the schema demands something that a terminal can't express.
    """
    lark = writer.find_text(schema, in_json=False)
    forms = [lark] if lark else list(write_alternatives(schema, field, bounds.pattern))
    plain = forms == [f"/{ANY}/"] and not bounds.edges
    text = "" if plain else writer.rule(f"TEXT_{id}", " | ".join(forms))
    if bounds.edges:
        text = writer.rule(f"EDGED_{id}", f"{text} & {bounds.edges}")
    found: dict[str, str] = {}
    for name, (pattern, rest, closed) in tails.items():
        bound = bounds.write_outside(writer, closed)
        if plain:
            whole = f"/{ANY}{pattern}/"
        else:  # there may be many tails
            whole = writer.rule(f"TAILED_{name.upper()}_{id}", f"{text} /{pattern}/") if pattern else text
            bound = writer.rule(f"{'ONCE' if closed else 'CLEAN'}_{bounds.id}", f"/{ANY}/ & {bound}")
        terminal = writer.rule(f"{name.upper()}_{id}", f"{whole} & {bound}")
        if not plain:
            writer.label(terminal, field)
        found[name] = f"{terminal} {rest}"
    return found


def write_alternatives(schema: Mapping[str, Any], field: str, forbidden: str) -> Iterator[str]:
    """Yield the alternatives for the text."""
    if beyond := BEYOND & schema.keys():
        raise not_expressible(field, sorted(beyond)[0])
    nested = [choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ())]
    beside = {"enum", "const", "pattern", "format", "minLength", "maxLength"} & schema.keys()
    if nested and (beside or {"anyOf", "oneOf"} <= schema.keys()):
        raise not_expressible(field, "anyOf beside other keywords")
    if any(not isinstance(choice, dict) for choice in nested):
        raise not_expressible(
            field, f"{str(next(c for c in nested if not isinstance(c, dict))).lower()} as an alternative"
        )
    if "oneOf" in schema and has_overlapping_choices(nested):
        raise not_expressible(field, "oneOf of which a text may fit two")
    for choice in nested:
        kinds = kinds_of(choice) & kinds_of({"type": schema.get("type", ["string", "null"])})
        if kinds:
            yield from write_alternatives(choice | {"type": sorted(kinds)}, field, forbidden)
    if not nested:
        yield from own_forms(schema, field, forbidden)


def own_forms(schema: Mapping[str, Any], field: str, forbidden: str) -> Iterator[str]:
    """Yield the alternatives for the text of a schema without anyOf and oneOf."""
    if "enum" in schema or "const" in schema:
        beside = "".join(f" & {one}" for one in iter_text_patterns(schema, field))
        for text, bound in listed_texts(schema, field, forbidden):
            yield quote_literal(text) + (beside if bound else "")
        return
    kinds = kinds_of(schema)
    if "string" in kinds:
        yield " & ".join([make_length_pattern(schema, field), *iter_text_patterns(schema, field)])
    if "null" in kinds:
        yield '"null"'


def has_overlapping_choices(choices: list[dict[str, Any]]) -> bool:
    """Return True if a text may fit two of the choices, according to their types and listed values."""
    kinds = [kind for choice in choices for kind in kinds_of(choice)]
    if len(kinds) == len(set(kinds)):
        return False
    values = [value for choice in choices for value in list_enum_values(choice)]
    return not all(map(list_enum_values, choices)) or len(values) != len(set(values))


def list_enum_values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that enum and const allow."""
    found = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []
    return [value for value in found if "const" not in schema or value == schema["const"]]


def listed_texts(schema: Mapping[str, Any], field: str, forbidden: str) -> list[tuple[str, bool]]:
    """Return the texts of an enum or a const that also fit the other keywords, and whether each is a string.

    A pattern restricts strings only.
    """
    values, kinds = list_enum_values(schema), kinds_of(schema)
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if any((value is not None and not isinstance(value, str)) or re.search(forbidden, value or "") for value in values):
        raise not_expressible(field, "an enum of other than strings, or with a tag in one")
    strings = [
        v
        for v in values
        if isinstance(v, str)
        and "string" in kinds
        and low <= len(v)
        and (high is None or len(v) <= high)
        and has_format(v, schema.get("format"))
    ]
    nulls = [v for v in values if v is None and "null" in kinds]
    if nulls and "null" in strings:
        raise not_expressible(field, 'an enum of null and "null"')
    if not strings and not nulls:
        raise not_expressible(field, "an enum of which no value fits")
    return [(text, True) for text in strings] + [("null", False) for _ in nulls[:1]]


def has_format(text: str, name: Any) -> bool:
    """Return True if the text has the format, or if the format has no pattern here."""
    return not isinstance(name, str) or name not in PATTERNS or re.fullmatch(PATTERNS[name], text) is not None


def make_length_pattern(schema: Mapping[str, Any], field: str) -> str:
    """Return minLength and maxLength as a pattern."""
    bounds = {key: int(schema[key]) for key in ("minLength", "maxLength") if schema.get(key) is not None}
    for key, bound in bounds.items():
        if bound > MAX_LENGTH:
            raise not_expressible(field, f"{key} {bound}, more than {MAX_LENGTH},")
    low, high = bounds.get("minLength", 0), bounds.get("maxLength")
    if high is not None and low > high:
        raise not_expressible(field, "a minLength above maxLength")
    if not low and high is None:
        return f"/{ANY}/"
    return f"/(?s:.{{{low},{'' if high is None else high}}})/"


def iter_text_patterns(schema: Mapping[str, Any], field: str) -> Iterator[str]:
    """Yield `pattern` and `format` as patterns of the whole text. An unknown format is an annotation."""
    name = schema.get("format")
    if name is not None and not isinstance(name, str):
        raise not_expressible(field, "a format that is no text")
    if name in REFUSED:
        raise not_expressible(field, f"the format {name}")
    if name in PATTERNS:
        yield f"/{enclose_pattern(f'^(?:{PATTERNS[name]})$')}/"
    if name in LONGEST:
        yield f"/(?s:.{{0,{LONGEST[name]}}})/"
    if "pattern" in schema:
        try:
            yield f"/{enclose_pattern(schema['pattern'])}/"
        except UnsupportedError as error:
            raise not_expressible(field, str(error)) from error
