"""A greedy answer takes the likeliest token of its own logprobs at each place."""

from __future__ import annotations

from tailrace.conform.context import LawContext
from tailrace.conform.law import Law
from tailrace.conform.reply import ReplyChoice
from tailrace.conform.reported import check
from tailrace.conform.spread import SAME_STEP
from tailrace.conform.verdict import Verdict


def look(choice: ReplyChoice) -> str | None:
    for at, token in enumerate(choice.tokens):
        if token.top and token.logprob is not None:
            best = max(token.top, key=lambda one: one[2])
            if best[2] > token.logprob + SAME_STEP:
                return (
                    f"token {at} is {token.text!r} ({token.logprob:.4f}), but {best[0]!r} is likelier ({best[2]:.4f})"
                )
    return None


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
