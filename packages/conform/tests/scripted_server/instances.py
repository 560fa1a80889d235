"""A text that fits a schema, a regex or a list, by chance: what the scripted server writes where it is bound."""

from __future__ import annotations

import json
import random
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

WORDS = ("sea", "stone", "a b", "é", '"', "", "x" * 3)


def instance(schema: dict[str, Any], rng: random.Random) -> Any:
    """A value that fits a JSON schema of the kinds that the laws use."""
    if "$ref" in schema or "anyOf" in schema:
        return instance(rng.choice(schema["anyOf"]), rng)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type", "string")
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: instance(inner, rng)
            for name, inner in schema.get("properties", {}).items()
            if name in required or rng.random() < 0.5
        }
    if kind == "array":
        low = schema.get("minItems", 0)
        return [
            instance(schema.get("items", {}), rng) for _ in range(rng.randint(low, schema.get("maxItems", low + 2)))
        ]
    return scalar(kind, schema, rng)


def scalar(kind: str, schema: dict[str, Any], rng: random.Random) -> Any:
    low, high = schema.get("minimum", 0), schema.get("maximum", 1000)
    if kind == "string" and "pattern" in schema:
        return matching(schema["pattern"].removeprefix("^").removesuffix("$"), rng)
    if kind == "string":
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", 8)
        return (rng.choice(WORDS) + "abcdefgh")[: rng.randint(shortest, max(shortest, longest))]
    made = {
        "integer": lambda: rng.randint(low, high),
        "number": lambda: round(rng.uniform(low, high), 3),
        "boolean": lambda: rng.random() < 0.5,
        "null": lambda: None,
    }
    return made[kind]()


def json_text(schema: dict[str, Any], rng: random.Random) -> str:
    return json.dumps(instance(schema, rng), ensure_ascii=False)


def matching(pattern: str, rng: random.Random) -> str:
    """A text that matches a regex of literals, classes, groups, branches and repeats."""
    return written(parser.parse(pattern), rng)


def written(parsed: Any, rng: random.Random) -> str:
    return "".join(one_written(code, value, rng) for code, value in parsed)


def one_written(code: Any, value: Any, rng: random.Random) -> str:
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.IN:
        kind, inner = rng.choice(value)
        if kind is codes.RANGE:
            return chr(rng.randint(*inner))
        return str(rng.randrange(10)) if kind is codes.CATEGORY else chr(inner)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        low, high, inner = value
        return "".join(written(inner, rng) for _ in range(rng.randint(low, min(high, low + 3))))
    if code is codes.SUBPATTERN:
        return written(value[-1], rng)
    if code is codes.BRANCH:
        return written(rng.choice(value[1]), rng)
    raise ValueError(f"no text for {code}")
