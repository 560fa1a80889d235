"""streams.role-once: the role comes first and once."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, asking, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import listed
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    for choice in said.choices.values():
        if choice.roles != ["assistant"]:
            return Finding(f"choice {choice.index} has the roles {listed(choice.roles[:4])} in its deltas", (made,))
    for event in made.events:
        for one in event.parsed.get("choices") or () if isinstance(event.parsed, dict) else ():
            delta = one.get("delta") or {}
            if delta.get("role"):
                return None
            if delta.get("content"):
                return Finding("text comes before the role", (made,))
    return None


async def check(ctx: LawContext) -> Verdict:
    tried = [asking("chat", "plain", stream=True, max_tokens=4)]
    if ctx.capabilities.offers("n"):
        tried.append(asking("chat", "plain", stream=True, max_tokens=4, n=2))
    return await judged(ctx, tried, judge)


LAW = Law(
    "streams.role-once",
    "Each choice of a streamed chat has its role in one delta, before any text.",
    "The official client joins texts of deltas: a role that comes twice becomes 'assistantassistant'.",
    "The roles of all deltas of a choice are counted.",
    "A role in every delta, or in none.",
    check,
    needs=("stream", "chat"),
    cost=2,
)
