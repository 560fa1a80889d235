"""A greedy answer takes the likeliest token of its own logprobs at each place."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.reply import ReplyChoice
from tailrace_conform.reported import Looked, check
from tailrace_conform.spread import SAME_STEP
from tailrace_conform.verdict import Verdict


def look(choice: ReplyChoice) -> Looked:
    judged = 0
    for at, token in enumerate(choice.tokens):
        if token.top and token.logprob is not None:
            judged += 1
            best = max(token.top, key=lambda one: one[2])
            if best[2] > token.logprob + SAME_STEP:
                seen = f"token {at} is {quoted(token.text)} ({token.logprob:.4f})"
                return judged, f"{seen}, but {quoted(best[0])} is likelier ({best[2]:.4f})"
    return judged, None


async def check_law(ctx: LawContext) -> Verdict:
    return await check(ctx, look, temperature=0.0)


LAW = Law(
    id="logprobs.greedy",
    sentence="At temperature 0 each token is the likeliest of the logprobs that are reported for its place.",
    why="If it is not, the logprobs are of another place, or the answer is not greedy.",
    method="Answers at temperature 0 are asked with logprobs. Equal logprobs may be decided either way.",
    violation="A reported token is likelier than the chosen one.",
    check=check_law,
    needs=("logprobs", "temperature"),
)
