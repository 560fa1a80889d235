"""presence_penalty is subtracted once from the logits of tokens that the output has."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.penalties import PenaltyLaw
from tailrace_conform.penalties import check as check_penalty
from tailrace_conform.sequential import SHARE
from tailrace_conform.verdict import Verdict

SIZE = 1.2
PENALTY = PenaltyLaw(
    "presence_penalty",
    SIZE,
    moved=lambda count: SIZE,
    mistakes={
        "no effect": lambda count: 0.0,
        "half as strong": lambda count: SIZE / 2,
        "twice as strong": lambda count: SIZE * 2,
        "once for each occurrence": lambda count: SIZE * count,
        "the other way": lambda count: -SIZE,
    },
    required=("no effect", "twice as strong", "the other way"),
)


async def check(ctx: LawContext) -> Verdict:
    return await check_penalty(ctx, PENALTY)


LAW = Law(
    id="knobs.presence-penalty",
    sentence="presence_penalty is subtracted once from the logit of each token that the output has.",
    why="Where it counts occurrences, or the prompt, the same number means something else on each server.",
    method="Answers are drawn with it. At each place the odds of tokens that the output has must be the reported raw "
    "odds times e^−penalty: a sequential test of the draws. Where processed logprobs are reported, these are compared "
    "with those of the same context without it.",
    violation="Tokens that were there come again too often or too rarely.",
    check=check,
    needs=("presence_penalty", "logprobs"),
    error_rate=SHARE,
    cost=30,
)
