"""structure.json-schema: an output under a schema fits the schema."""

from __future__ import annotations

import json
from typing import Any

from tailrace_conform.cases import Case, Finding, SaysNothing, asking, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.schema_check import misfit
from tailrace_conform.verdict import Verdict

HOT = 1.5  # a temperature at which hardly any model writes valid JSON by itself


def made_of(**properties: Any) -> dict[str, Any]:
    """An object with these properties, all required, and no others."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


COLOUR = {"type": "string", "enum": ["red", "green", "blue"]}
SHORT = {"type": "string", "maxLength": 8}
SCHEMAS: list[dict[str, Any]] = [
    made_of(colour=COLOUR, sure={"type": "boolean"}),
    made_of(point=made_of(x={"type": "boolean"}, y=COLOUR), none={"type": "null"}),
    made_of(list={"type": "array", "items": COLOUR, "minItems": 2, "maxItems": 3}),
    made_of(name=SHORT, kind={"const": "word"}),
    made_of(date={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}),
    made_of(either={"anyOf": [{"type": "boolean"}, COLOUR]}),
    {"type": "array", "items": made_of(sure={"type": "boolean"}), "minItems": 1, "maxItems": 2},
    made_of(count={"type": "integer", "minimum": 1, "maximum": 9}),
]


def schema_of(case: Case) -> dict[str, Any]:
    return case.body.get("response_format", {}).get("json_schema", {}).get("schema", {})


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    choice = said.choice()
    if choice.finish_reason == "length" or not schema_of(case):
        raise SaysNothing("max_tokens cut the answers")
    try:
        value = json.loads(choice.text)
    except ValueError:
        begun = choice.text.lstrip()[:1] in ("{", "[")
        return Finding(f"no JSON: {quoted(choice.text[:80])}", (made,), effect=begun)
    seen = misfit(value, schema_of(case))
    return Finding(f"{seen} in {choice.text[:120]}", (made,)) if seen else None


async def check(ctx: LawContext) -> Verdict:
    schemas = SCHEMAS[: max(4, ctx.budget.cases)] * max(1, ctx.budget.cases // len(SCHEMAS))
    tried = [
        asking(
            "chat",
            "Write something as JSON.",
            temperature=HOT,
            max_tokens=120,
            response_format={"type": "json_schema", "json_schema": {"name": "made", "schema": one, "strict": True}},
        )
        for one in schemas
    ]
    return await judged(ctx, tried, judge)


LAW = Law(
    "structure.json-schema",
    "An answer bound to a JSON schema fits the schema, at a high temperature too, or the schema is refused.",
    "Programs parse it without a second look; a keyword that is accepted but not enforced fails only in production.",
    f"Schemas with nested objects, bounded arrays, enums, const, null, patterns, anyOf and ranges at temperature "
    f"{HOT}. Finished answers must parse and validate; those that max_tokens cut say nothing.",
    "Text before the JSON, a missing brace, a pattern or a bound that is not kept.",
    check,
    needs=("json_schema", "chat"),
    cost=5,
)
