"""streams.deltas-join: the joined deltas are the plain answer."""

from __future__ import annotations

from typing import Any

from tailrace_conform.cases import Case, Finding, cases, check_repeatable, judged, need_text, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    plain, said = await sent(ctx, case)
    streamed, also = await sent(ctx, case, stream=True)
    one, other = said.choice(), also.choice()
    if (one.text, one.reasoning) == (other.text, other.reasoning):
        if one.finish_reason == other.finish_reason:
            need_text(one.said)
            return None
        seen = f"finish_reason is {quoted(one.finish_reason)} plain and {quoted(other.finish_reason)} streamed"
    else:
        seen = f"plain {quoted(one.text[-60:])}, streamed {quoted(other.text[-60:])}"
    await check_repeatable(ctx, case, one.text)
    return Finding(seen, (streamed, plain))


async def check(ctx: LawContext) -> Verdict:
    sets: list[dict[str, Any]] = [{"temperature": 0.0, "max_tokens": 32}]
    if ctx.capabilities.offers("seed"):
        sets.append({"temperature": 1.0, "seed": ctx.rng.randrange(1 << 31), "max_tokens": 32})
    return await judged(ctx, cases(ctx, ["plain", "characters", "story", "numbers"], *sets), judge)


LAW = Law(
    "streams.deltas-join",
    "The joined deltas equal the answer without stream, character by character.",
    "Two code paths that write text differ: a space lost at the start, the last token left out at a limit.",
    "The same request, greedy and with a seed, plain and streamed. Where they differ, the plain one is asked once "
    "more; a case that is not repeatable says nothing.",
    "A missing space, a lost last piece, another finish reason.",
    check,
    needs=("stream",),
    cost=12,
)
