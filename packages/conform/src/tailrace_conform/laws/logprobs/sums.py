"""Reported probabilities add up to 1 at most."""

from __future__ import annotations

import math

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.reply import ReplyChoice
from tailrace_conform.reported import Looked, check
from tailrace_conform.spread import SAME_STEP, top_of
from tailrace_conform.verdict import Verdict


def look(choice: ReplyChoice) -> Looked:
    judged = 0
    for at, token in enumerate(choice.tokens):
        if token.logprob is not None and not -math.inf <= token.logprob <= SAME_STEP:
            return judged, f"token {at} ({quoted(token.text)}) has the logprob {token.logprob:.4f}"
        judged += bool(token.top)
        total = sum(math.exp(value) for value in top_of(token).values())
        if not total <= math.exp(SAME_STEP):
            return judged, f"the {len(token.top)} likeliest of token {at} have {total:.4f} of the probability"
    return judged, None


async def check_law(ctx: LawContext) -> Verdict:
    return await check(ctx, look)


LAW = Law(
    id="logprobs.sums",
    sentence="No logprob is above 0, and the probabilities of the reported tokens add up to 1 at most.",
    why="Else they are logits, or normalised over something else, and perplexities made of them are wrong.",
    method="Answers are drawn with logprobs; the probabilities of each place's likeliest tokens are added up. A factor "
    "of e^0.005 is allowed for rounding.",
    violation="A sum above 1.",
    check=check_law,
    needs=("logprobs",),
)
