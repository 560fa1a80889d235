"""structure.thinking: thoughts come in their own field, in both ways of answering."""

from __future__ import annotations

import re

from tailrace_conform.cases import Case, Finding, asking, sent
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Refused
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive, not_offered

MARKERS = re.compile(r"</?think(?:ing)?>|<\|channel\|>|\[/?THINK\]")


async def judge(ctx: LawContext, case: Case) -> tuple[str, Finding | None]:
    """What there was beside a field of thoughts: "text", "nothing", or "" where there were no thoughts; and what is
    wrong with them."""
    plain, said = await sent(ctx, case)
    streamed, also = await sent(ctx, case, stream=True)
    one, other = said.choice(), also.choice()
    thought = bool(one.reasoning or other.reasoning)
    for made, choice in ((plain, one), (streamed, other)):
        if thought and (found := MARKERS.search(choice.text)):
            return "text", Finding(f"{found[0]} in the content, beside a field of thoughts", (made,))
    if bool(one.reasoning) != bool(other.reasoning):
        made, how = (streamed, "plain but not streamed") if one.reasoning else (plain, "streamed but not plain")
        return "text", Finding(f"thoughts in their own field {how}", (made,))
    beside = "text" if one.text.strip() and other.text.strip() else "nothing"
    return (beside if thought else ""), None


async def check(ctx: LawContext) -> Verdict:
    seen: list[str] = []
    for fields in ({"reasoning_effort": "low"}, {}):
        case = asking("chat", "What is 2 + 3?", temperature=0.0, max_tokens=200, **fields)
        try:
            beside, finding = await judge(ctx, case)
        except Refused:
            continue
        if finding:
            return broken(finding.said, *finding.exchanges)
        seen += [beside] if beside else []
    if not seen:
        return not_offered("no thoughts came in a field of their own")
    if "text" not in seen:
        return inconclusive("the answers are thoughts alone: whether a marker comes into the content is not seen")
    return holds(f"{seen.count('text')} answers with thoughts and text")


LAW = Law(
    "structure.thinking",
    "Thoughts come in a field of their own, streamed and plain, and no marker of theirs is in the content.",
    "Thoughts in the content are shown to users and sent back as history.",
    "A short question, with and without reasoning_effort, plain and streamed. Where a field of thoughts is used at "
    "all, it must be used in both, and the content must be free of markers.",
    "</think> in the content, or thoughts that are separated only without stream.",
    check,
    needs=("chat", "stream"),
    cost=4,
)
