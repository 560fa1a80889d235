"""structure.json-object: JSON mode writes an object."""

from __future__ import annotations

import json

from tailrace_conform.cases import Case, Finding, SaysNothing, asking, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    choice = said.choice()
    begun = choice.text.lstrip()[:1] == "{"
    if choice.finish_reason == "length" and (begun or not choice.text.strip()):
        raise SaysNothing("max_tokens cut the answers")
    try:
        value = json.loads(choice.text)
    except ValueError:
        return Finding(f"no JSON: {quoted(choice.text[:80])}", (made,), effect=begun)
    return None if isinstance(value, dict) else Finding(f"no object: {quoted(choice.text[:80])}", (made,))


async def check(ctx: LawContext) -> Verdict:
    ask = "Give me a JSON object with a single short field."
    fields = {"max_tokens": 100, "response_format": {"type": "json_object"}}
    # small models seldom come to an end at a high temperature
    warmth = [(0.0, 1.2)[at % 2] for at in range(ctx.budget.cases)]
    return await judged(ctx, [asking("chat", ask, temperature=one, **fields) for one in warmth], judge)


LAW = Law(
    "structure.json-object",
    "With response_format json_object the answer is a JSON object.",
    "It is the most used way to ask for structure.",
    "Answers at temperatures 0 and 1.2; finished ones must parse as an object, cut ones must begin as one.",
    "Prose, a fenced block around the JSON, an array.",
    check,
    needs=("json_object", "chat"),
    cost=4,
)
