"""stops.held-back: text waits only as long as it may become a stop."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict

NEVER = "\x01\x02" * 12  # begins with what no model writes
TIMES = 3  # in a row; a busy server merges events


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    found = None
    for _ in range(TIMES):
        without = (await sent(ctx, case, stop=None))[1].choice()
        made, said = await sent(ctx, case)
        usual = max(map(len, without.pieces), default=0)
        last = len(said.choice().pieces[-1]) if said.choice().pieces else 0
        if len(without.text) < 2 * len(NEVER):
            raise SaysNothing(f"no answer has {2 * len(NEVER)} characters")
        if last < usual + len(NEVER) // 2:
            return None
        tokens = last * len(without.pieces) / len(without.text) - 1
        found = Finding(f"the last {last} characters came at once, about {tokens:.0f} tokens late", (made,))
    return found


async def check(ctx: LawContext) -> Verdict:
    fields = {"stream": True, "temperature": 0.0, "max_tokens": 48, "stop": [NEVER]}
    return await judged(ctx, cases(ctx, ["story", "numbers", "plain"][: ctx.budget.cases // 2], fields), judge)


LAW = Law(
    "stops.held-back",
    "Text is held back only as long as it may become a stop string.",
    "A server that always holds back as many characters as the longest stop makes every token late.",
    f"A stop of {len(NEVER)} control characters never begins in the text. If the last event brings so many characters "
    "at once that half of the stop's length was held, three times in a row, text was held back for nothing. Counted in "
    "characters and tokens, not in time.",
    "The stream lags behind by the stop's length and catches up at the end.",
    check,
    needs=("stop", "stream"),
    cost=12,
)
