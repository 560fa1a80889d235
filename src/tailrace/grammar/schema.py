"""Translates a JSON Schema to the part of the language that the matching library enforces exactly. Everything else is
refused.

The library silently ignores some of the standard: keywords of other drafts, rules for references, details of patterns.
It also accepts some schemas whose values it can't finish. So it never sees a client's schema, only a translation: a
schema of 2020-12 with the keywords below, all references in one form, and none circular without progress.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tailrace.base.json_schema import free_counts
from tailrace.base.schema_branches import join_branches
from tailrace.errors import format_json
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.ecma import MAX_REPEAT, UNWRITABLE, split_look_ahead, translate_pattern
from tailrace.grammar.finite import prune_schema
from tailrace.grammar.formats import LONGEST, PATTERNS
from tailrace.grammar.formats import REFUSED as NO_PATTERN
from tailrace.grammar.keywords import REFUSED, Node, check_keywords, simplify_node, split_types
from tailrace.grammar.references import References

MAX_ITEMS = 10_000  # Each item is a rule of the grammar.
MAX_MIN_LENGTH = 10_000  # Each character is a state of the library's lexer. A request may have 20,000 states.
NEVER = 2**31 - 1  # Larger upper bounds have no effect: no output is so long.
EXACT = 2**53  # Whole numbers up to here are exact floats.
DRAFT = re.compile(r"https?://json-schema\.org/(?:draft-0([4-7])|draft/(2019-09|2020-12))/schema#?")
LATEST = ("", "http://json-schema.org/schema#", "https://spec.openapis.org/oas/3.1/dialect/base")


def translate_schema(schema: Node) -> Node:
    """Return an equivalent schema.

    Some valid values are never written:

    - control characters that JSON spells as \\u00XX;
    - numbers in another form (1.0 for an integer, exponents with bounds);
    - names in another order;
    - the omissions of grammar/formats.py.

    Raises:
        UnsupportedError: it is no schema, it can't be enforced completely, or no value validates.
    """
    return Translation(schema).whole()


def draft_of(schema: Node) -> int:
    """Return the draft of a schema: 4, 6, 7, 2019 or 2020."""
    name = schema.get("$schema", "")
    if name in LATEST:
        return 2020
    if not isinstance(name, str) or (found := DRAFT.fullmatch(name)) is None:
        raise UnsupportedError(f"$schema {format_json(name)} is not supported; drafts 4 to 2020-12 are")
    return int(found[1] or found[2][:4])


class Translation:
    """The translation of one schema."""

    def __init__(self, schema: Node) -> None:
        draft = draft_of(schema)
        self.root, self.bare = schema, draft <= 7  # in these drafts nothing beside a $ref counts
        self.references = References(schema, "id" if draft == 4 else "$id", self.bare)
        self.names: dict[int, str] = {}  # id of a referred schema → name of its definition
        self.waiting: list[tuple[str, Any, str]] = []
        self.multiples: set[Fraction] = set()

    def whole(self) -> Node:
        body, definitions = self.translate_node(self.root, "#"), {}
        while self.waiting:
            name, target, place = self.waiting.pop()
            definitions[name] = self.translate_node(target, place)
        if (
            unmixed := math.prod(m.numerator for m in self.multiples)
            * max((m.denominator for m in self.multiples), default=1)
        ) >= 2**32:
            raise UnsupportedError(f"multipleOf values that go together only in steps of up to {unmixed}")
        if isinstance(body, dict):
            body = join_branches({**body, "$defs": definitions})
            definitions = body.pop("$defs")
        whole = prune_schema(body, definitions)
        for place, least in free_counts(whole):
            raise UnsupportedError(f"minProperties {least} at {place}, where names are free")
        return whole

    def translate_node(self, given: Any, place: str) -> Node | bool:
        if isinstance(given, bool):
            return given
        bare = {"$ref": given["$ref"]} if self.bare and "$ref" in given else given
        node = simplify_node(split_types(check_keywords(bare, place))[1])
        if isinstance(node, bool):
            return node
        if refused := sorted(node.keys() & REFUSED):
            raise UnsupportedError(f"{', '.join(refused)} at {place} can't be enforced")
        types, node = split_types(node)
        out: Node = {"type": types} if "type" in node else {}
        out |= {
            **self.translate_string(node, place),
            **self.number(node, place),
            **self.translate_array(node, place),
            **self.object(node, place),
        }
        if patterns := out.pop("patterns", []):
            out["pattern"] = patterns[0]
        # These come last, after the other keywords: the library reads from left to right.
        for key in ("const", "enum"):
            if key in node:
                check_literal(node[key], f"{place}/{key}")
                out[key] = node[key]
        parts = [self.translate_node(one, f"{place}/allOf/{i}") for i, one in enumerate(node.get("allOf", ()))]
        if parts := [{"pattern": one} for one in patterns[1:]] + parts:
            out["allOf"] = parts
        for key in ("anyOf", "oneOf"):
            if key in node:
                out[key] = [self.translate_node(one, f"{place}/{key}/{i}") for i, one in enumerate(node[key])]
        if "oneOf" in node and "discriminator" in given:
            out["discriminator"] = given["discriminator"]  # an annotation; see join_branches
        if "$ref" in node:
            out["$ref"] = self.name_reference(given, place)
        return out

    def name_reference(self, node: Node, place: str) -> str:
        target, named = self.references.target(node, place)
        if id(target) not in self.names:
            self.names[id(target)] = str(len(self.names))
            self.waiting.append((self.names[id(target)], target, named))
        return f"#/$defs/{self.names[id(target)]}"

    def translate_string(self, node: Node, place: str) -> Node:
        out: Node = {}
        if least := node.get("minLength"):
            out["minLength"] = check_bound(least, MAX_MIN_LENGTH, "minLength", place)
        given = split_look_ahead(node["pattern"]) if "pattern" in node else []
        patterns = [convert_pattern(pattern, place) for pattern in given]
        most = node.get("maxLength", NEVER)
        if (name := node.get("format")) in NO_PATTERN:
            raise UnsupportedError(f"the format {name} at {place} can't be enforced")
        if name in PATTERNS:
            patterns.append(translate_pattern(f"^(?:{PATTERNS[name]})$"))
            most = min(most, LONGEST.get(name, NEVER))
        if most < NEVER:
            out["maxLength"] = check_bound(most, MAX_REPEAT, "maxLength", place)
        return out | ({"patterns": patterns} if patterns else {})

    def number(self, node: Node, place: str) -> Node:
        out: Node = {}
        for key, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            bounds = {name: node[name] for name in (key, exclusive) if name in node}
            if isinstance(strict := bounds.get(exclusive), bool):  # draft 4's form
                del bounds[exclusive]
                if strict and key in bounds:
                    bounds = {exclusive: bounds[key]}
            for name, value in bounds.items():
                if value not in (2**63 - 1, -(2**63)):  # the limits of the library's own integers
                    check_number(value, f"{place}/{name}")
            out |= bounds
        if "multipleOf" in node:
            self.multiples.add(parse_multiple(node["multipleOf"], place))
            out["multipleOf"] = node["multipleOf"]
        return out

    def translate_array(self, node: Node, place: str) -> Node:
        out: Node = {key: self.translate_node(node[key], f"{place}/{key}") for key in ("items",) if key in node}
        if prefix := node.get("prefixItems"):
            out["prefixItems"] = [self.translate_node(one, f"{place}/prefixItems/{i}") for i, one in enumerate(prefix)]
        if least := node.get("minItems"):
            out["minItems"] = check_bound(least, MAX_ITEMS, "minItems", place)
        if (most := node.get("maxItems", NEVER)) < NEVER:
            out["maxItems"] = check_bound(most, MAX_ITEMS, "maxItems", place)
        return out

    def object(self, node: Node, place: str) -> Node:
        out: Node = {}
        if named := node.get("properties"):
            out["properties"] = {
                name: self.translate_node(one, f"{place}/properties/{name}") for name, one in named.items()
            }
        if matched := node.get("patternProperties"):
            keys = [convert_pattern(key, place) for key in matched]
            if len(set(keys)) < len(keys):
                raise UnsupportedError(f"patternProperties at {place}: two patterns that mean the same")
            out["patternProperties"] = {
                key: self.translate_node(one, f"{place}/patternProperties/{i}")
                for i, (key, one) in enumerate(zip(keys, matched.values(), strict=True))
            }
        if "additionalProperties" in node:
            out["additionalProperties"] = self.translate_node(
                node["additionalProperties"], f"{place}/additionalProperties"
            )
        if required := list(dict.fromkeys(node.get("required", ()))):
            out["required"] = required
        if least := node.get("minProperties"):
            out["minProperties"] = check_bound(least, MAX_ITEMS, "minProperties", place)
        if (most := node.get("maxProperties", NEVER)) < NEVER:
            out["maxProperties"] = check_bound(most, MAX_ITEMS, "maxProperties", place)
        return out


def convert_pattern(source: str, place: str) -> str:
    try:
        return translate_pattern(source)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error} at {place}") from None


def check_bound(value: float, most: int, key: str, place: str) -> int:
    if value > most:
        raise UnsupportedError(f"{key} must be at most {most} here, got {format_json(value, 40)} at {place}")
    return int(value)


def check_number(value: float, place: str) -> None:
    """Raise UnsupportedError if the library would round the number."""
    if not abs(value) < 1e18 or (abs(value) > EXACT and float(value) != value):  # refuses NaN as well
        raise UnsupportedError(f"the number {format_json(value, 40)} at {place}: too large to be kept exactly")


def check_literal(value: Any, place: str) -> None:
    """Raise UnsupportedError if a value can't be written exactly."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case bool() | None:
                pass
            case int() | float() as number:
                check_number(number, place)
            case str() as text if bad := UNWRITABLE & set(text):
                raise UnsupportedError(f"the character U+{ord(min(bad)):04X} at {place}: it can't be written here")
            case str() as text:
                check_text(text, place)
            case list() as values:
                waiting += values
            case dict() as named:
                for name in named:
                    check_text(name, place)
                waiting += named.values()


def check_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnsupportedError(f"half of a surrogate pair at {place}") from None


def parse_multiple(value: float, place: str) -> Fraction:
    """Return the number exactly as written, if the library gets the same. The library multiplies by ten until no
    fraction is left."""
    written = Fraction(repr(value))
    found, digits = float(min(written, 2**32)), 0  # larger ones are refused below, and may be no float
    while found != math.floor(found) and digits <= 12:
        found, digits = found * 10, digits + 1
    if found >= 2**32 or Fraction(int(found), 10**digits) != written:
        raise UnsupportedError(
            f"multipleOf {format_json(value, 40)} at {place}: it has too many digits to be enforced exactly"
        )
    return written


def patterns_of(schema: Any) -> Iterable[str]:
    """Yield all patterns for names of properties."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            yield from one.get("patternProperties", ())
            waiting += [value for key, value in one.items() if key not in ("const", "enum")]
