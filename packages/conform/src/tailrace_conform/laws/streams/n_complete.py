"""streams.n-complete: n choices are n choices."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, cases, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    wanted = list(range(case.body.get("n", 1)))
    plain, said = await sent(ctx, case)
    listed = [one.get("index") for one in plain.parsed.get("choices", ())]
    if listed != wanted:
        return Finding(f"the choices have the indexes {quoted(listed)} in this order, not {wanted}", (plain,))
    streamed, also = await sent(ctx, case, stream=True)
    if sorted(also.choices) != wanted:
        return Finding(f"the stream has the choices {sorted(also.choices)}, not {wanted}", (streamed,))
    for made, answer in ((plain, said), (streamed, also)):
        if not all(choice.ends for choice in answer.choices.values()):
            return Finding("a choice has no finish_reason", (made,))
    if said.usage and all(choice.finish_reason == "length" for choice in said.choices.values()):
        count = case.body["max_tokens"] * len(wanted)
        if said.usage.get("completion_tokens") != count:
            return Finding(f"usage is {quoted(said.usage)}, but {count} tokens were generated", (plain,))
    return None


async def check(ctx: LawContext) -> Verdict:
    sets = [{"temperature": 1.0, "max_tokens": 6, "n": count} for count in (3, 2, 5)]
    return await judged(ctx, cases(ctx, ["plain"], *sets), judge)


LAW = Law(
    "streams.n-complete",
    "n brings n choices with the indexes 0 to n - 1: in this order without stream, each with an ending, all counted.",
    "Best-of and voting index the list; usage for n choices is what is billed.",
    "Plain and streamed with n of 2 to 5. Indexes, finish reasons and completion_tokens are compared.",
    "A choice missing, indexes out of order, usage of one choice alone.",
    check,
    needs=("n", "stream"),
    cost=6,
)
