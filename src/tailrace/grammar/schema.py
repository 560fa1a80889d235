"""What a JSON Schema says where: what does not bind, and what a library would pass over in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.grammar.check import UnsupportedError
from tailrace.json_schema import free_counts, listed, pointed, subschemas

# of the standard's drafts 4 to 2020-12; what else stands in a schema is annotation, by the standard
OBJECT = {"properties", "patternProperties", "additionalProperties", "propertyNames", "required", "minProperties", "maxProperties",
          "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"}  # fmt: skip
ARRAY = {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
         "unevaluatedItems"}  # fmt: skip
STRING = {"minLength", "maxLength", "pattern", "format"}
NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
ANYWHERE = {
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "enum",
    "const",
}
BINDING = OBJECT | ARRAY | STRING | NUMBER | ANYWHERE | {"type"}
FORMATS = {"date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri", "iri-reference",
           "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid"}  # fmt: skip

PYTHON: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: not isinstance(v, bool) and (isinstance(v, int) or (isinstance(v, float) and v.is_integer())),
    "number": lambda v: not isinstance(v, bool) and isinstance(v, (int, float)),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
}


def without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    """Drops, in place, what does not bind but would stop or steer a library: formats that are none of the standard's ("int32"), and
    llguidance's own options, which could loosen the schema."""
    for _, node in subschemas(schema):
        if isinstance(node.get("format"), str) and node["format"] not in FORMATS:
            del node["format"]
        node.pop("x-guidance", None)
    return schema


def check_counts(schema: dict[str, Any]) -> None:
    """Raises UnsupportedError where minProperties could be met by the same name twice."""
    for place, least in free_counts(schema):
        raise UnsupportedError(f"minProperties {least} at {place}, where names are free")


def narrow(schema: dict[str, Any]) -> None:
    """In place, what xgrammar would write that is not JSON, or does not fit, is left out: objects with properties get no others (it lets
    an additional name be spelled with escapes, so that it could be a declared one), strings with lengths become patterns (with lengths
    it lets control characters through)."""
    for _, node in list(subschemas(schema)):
        if node.get("properties"):
            node["additionalProperties"] = False
        if "minLength" in node or "maxLength" in node:
            node["pattern"] = f"^.{{{node.pop('minLength', 0)},{node.pop('maxLength', '')}}}$"


def check_for_xgrammar(schema: dict[str, Any]) -> None:
    """xgrammar passes over much of the standard in silence (most constraints beside others). What it is known to keep is listed here;
    all else raises UnsupportedError, naming the place, so that no output fails to validate."""
    for place, node in subschemas(schema):
        if extra := ignored(node):
            raise UnsupportedError(f"{', '.join(sorted(extra))} at {place}")
        if "pattern" in node:
            check_pattern(node["pattern"], place)
        ref = node.get("$ref")
        if ref is not None and ref != "#" and not (isinstance(ref, str) and isinstance(pointed(schema, ref), dict)):
            raise UnsupportedError(f"$ref {ref!r} at {place}")
        for key in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
            if key in node and (not isinstance(node[key], int) or node[key] < 0):
                raise UnsupportedError(f"{key} {node[key]!r} at {place}")


def ignored(node: dict[str, Any]) -> set[str]:
    """Keywords of one subschema that bind and that xgrammar would, or might, not keep as they stand together."""
    keys = (node.keys() & BINDING) - ({"uniqueItems"} if node.get("uniqueItems") is False else set())
    for alone in ("$ref", "anyOf", "allOf"):
        if alone in keys:
            return keys - {alone} if alone != "allOf" or len(node[alone]) == 1 else keys
    if "oneOf" in keys:
        return keys - {"oneOf"} if disjoint(node["oneOf"]) else keys
    types = node["type"] if isinstance(node.get("type"), list) else [node["type"]] if "type" in node else []
    for alone in ("enum", "const"):
        if alone in keys:
            values = node[alone] if alone == "enum" and isinstance(node[alone], list) else [node.get(alone)]
            fits = all(not types or any(t in PYTHON and PYTHON[t](v) for t in types) for v in values)
            return keys - {alone, "type"} if fits else keys
    keys -= {"type"}
    kept = (
        KEPT["object"]
        if not types
        else [set().union(*choice) for choice in products([KEPT.get(t, [set()]) for t in types])]
    )
    extra = min((keys - allowed for allowed in kept), key=len, default=keys)
    undeclared = set(listed(node)) - set(node.get("properties", ()))
    return extra | ({"required"} if undeclared else set())


# by type: keywords that it keeps together
KEPT: dict[str, list[set[str]]] = {
    "string": [{"minLength", "maxLength"}, {"pattern"}, {"format"}],
    "integer": [{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}, {"multipleOf"}],
    "number": [{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}],
    "array": [{"items", "prefixItems", "minItems", "maxItems"}],
    "object": [
        {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
        {"propertyNames", "additionalProperties"},
    ],
}  # fmt: skip


def products(choices: list[list[set[str]]]) -> Iterator[tuple[set[str], ...]]:
    """One of each."""
    if not choices:
        yield ()
        return
    for head in choices[0]:
        for tail in products(choices[1:]):
            yield (head, *tail)


def disjoint(branches: Any) -> bool:
    """Do these have types of which no value has two? Only then is oneOf the same as anyOf for sure."""
    seen: set[str] = set()
    for branch in branches if isinstance(branches, list) else [None]:
        types = branch.get("type") if isinstance(branch, dict) else None
        names = {types} if isinstance(types, str) else set(types) if isinstance(types, list) else {""}
        names |= {"integer", "number"} if names & {"integer", "number"} else set()
        if "" in names or names & seen:
            return False
        seen |= names
    return True


PIECE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?.|.", re.DOTALL)


def check_pattern(pattern: Any, place: str, dot: str = ".") -> str:
    """The pattern, its unescaped dots as `dot`. Raises UnsupportedError where xgrammar would drop something: anchors in the middle, and
    what begins with "(?"."""
    if not isinstance(pattern, str):
        raise UnsupportedError(f"a pattern that is no text at {place}")
    pieces = PIECE.findall(pattern)
    for i, piece in enumerate(pieces):
        anchor = (piece == "^" and i > 0) or (piece == "$" and i < len(pieces) - 1)
        if anchor or (piece.startswith("(?") and piece != "(?:") or re.fullmatch(r"\\[AZzGbBkKpP1-9]", piece):
            raise UnsupportedError(f"{piece!r} in the pattern {json.dumps(pattern)[:80]} at {place}")
    if ("^" in pieces or "$" in pieces) and "|" in pieces:
        raise UnsupportedError(f"an anchor and | in the pattern {json.dumps(pattern)[:80]} at {place}")
    return "".join(dot if piece == "." else piece for piece in pieces)
