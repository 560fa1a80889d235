"""streams.whole-characters: no delta and no answer holds a part of a character."""

from __future__ import annotations

import re
from typing import Any

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, check_repeatable, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict

HALF = re.compile("[\ud800-\udfff]")
WIDE = re.compile("[^\x00-\x7f]")
UNKNOWN = "\ufffd"


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    streamed, also = await sent(ctx, case, stream=True)
    choice = also.choice()
    for piece in choice.pieces:
        if HALF.search(piece):
            return Finding(f"half of a character in a delta: {quoted(piece)}", (streamed,))
    plain, said = await sent(ctx, case)
    if HALF.search(said.text):
        return Finding(f"half of a character: {quoted(said.text)}", (plain,))
    if (text := split(choice.text, said.text)) is not None:
        await check_repeatable(ctx, case, said.text)
        return Finding(f"U+FFFD where a character was split: {quoted(text[-60:])}", (streamed, plain))
    return await judge_cut(ctx, case, said.text)


def split(streamed: str, plain: str) -> str | None:
    """Which of the two has more of U+FFFD; None if neither. U+FFFD at the very end counts where the other goes on with
    the character; else max_tokens has cut it, and either may leave it out."""

    def num_unknown(text: str, other: str) -> int:
        begun = text.rstrip(UNKNOWN)
        goes_on = other.startswith(begun) and len(other.rstrip(UNKNOWN)) > len(begun)
        return (text if goes_on else begun).count(UNKNOWN)

    inside, plain_inside = num_unknown(streamed, plain), num_unknown(plain, streamed)
    if inside == plain_inside:
        return None
    return streamed if inside > plain_inside else plain


async def judge_cut(ctx: LawContext, case: Case, whole: str) -> Finding | None:
    """The answer to a smaller max_tokens begins the longer one, but for a U+FFFD where its last character is cut."""
    length = case.body["max_tokens"] // 2
    cut, said = await sent(ctx, case, max_tokens=length)
    if not WIDE.search(whole):
        raise SaysNothing("no answer has a character of more than one byte")
    if whole.startswith(said.text.rstrip(UNKNOWN)) and said.text.count(UNKNOWN) <= whole.count(UNKNOWN) + 3:
        return None
    await check_repeatable(ctx, case, whole)
    return Finding(
        f"max_tokens {length} gives {quoted(said.text[-40:])}, which does not begin {quoted(whole[:80])}", (cut,)
    )


async def check(ctx: LawContext) -> Verdict:
    sets: list[dict[str, Any]] = [{"temperature": 0.0, "max_tokens": count} for count in (24, 25)]
    if ctx.capabilities.offers("seed"):
        sets += [{"temperature": 1.0, "seed": ctx.rng.randrange(1 << 31), "max_tokens": 40} for _ in range(3)]
    # Short answers are likely to end among emoji: of an emoji of two tokens one length has all, the other a half.
    short: list[dict[str, Any]] = [{"temperature": 0.0, "max_tokens": count} for count in (7, 8)]
    tried = cases(ctx, ["characters"], *short) + cases(ctx, ["characters", "plain"], *sets)
    return await judged(ctx, tried, judge)


LAW = Law(
    "streams.whole-characters",
    "No delta and no answer holds half of a character that the model wrote whole.",
    "An emoji is four bytes in up to four tokens: sent one by one it arrives as �, or as half a surrogate pair that "
    "breaks the client's JSON.",
    "Prompts with emoji and many scripts, greedy and seeded, of two short lengths and longer. Surrogates are never "
    "allowed. U+FFFD must occur as often streamed as plain, but for the very end, where max_tokens cuts a character: "
    "there either may leave it out, and neither may have it where the other has the character. A shorter answer must "
    "begin the longer one; U+FFFD at its very end is allowed. Answers of ASCII alone say nothing.",
    "U+FFFD in the place of a character that the other answer has, a lone surrogate, a character lost at a limit.",
    check,
    needs=("stream",),
    cost=30,
)
