"""stops.held-back: text waits only as long as it may become a stop."""

from __future__ import annotations

from tailrace.conform.cases import Case, Finding, cases, judged, sent
from tailrace.conform.context import LawContext
from tailrace.conform.exchange import Exchange
from tailrace.conform.law import Law
from tailrace.conform.reply import ReplyChoice, reply
from tailrace.conform.verdict import Verdict

NEVER = "\x01\x02" * 12  # begins with what no model writes
TIMES = 3  # a busy server merges events: the smallest delay counts


def delay(made: Exchange, chat: bool) -> int:
    """Characters that came with the last text at once: what had been held back, and the last token."""
    choice: ReplyChoice = reply(made).choice()
    return len(choice.pieces[-1]) if choice.pieces else 0


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    without = [(await sent(ctx, case, stop=None))[1].choice() for _ in range(TIMES)]
    usual = min(max(map(len, one.pieces), default=0) for one in without)
    held = []
    for _ in range(TIMES):
        made = (await sent(ctx, case))[0]
        held.append(delay(made, case.chat))
    if len(without[0].text) < 2 * len(NEVER) or min(held) < usual + len(NEVER) // 2:
        return None
    per_token = len(without[0].text) / max(len(without[0].pieces), 1)
    tokens = min(held) / per_token - 1
    return Finding(f"the last {min(held)} characters came at once, about {tokens:.0f} tokens late", (made,))


async def check(ctx: LawContext) -> Verdict:
    fields = {"stream": True, "temperature": 0.0, "max_tokens": 64, "stop": [NEVER]}
    return await judged(ctx, cases(ctx, ["story", "numbers"], fields), judge)


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
