"""frequency_penalty is subtracted from the logits of tokens once for each time that the output has them."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.penalties import PenaltyLaw
from tailrace_conform.penalties import check as check_penalty
from tailrace_conform.sequential import SHARE
from tailrace_conform.verdict import Verdict

SIZE = 0.9
PENALTY = PenaltyLaw(
    "frequency_penalty",
    SIZE,
    moved=lambda count: SIZE * count,
    mistakes={
        "no effect": lambda count: 0.0,
        "one occurrence more": lambda count: SIZE * (count + 1),
        "one occurrence fewer": lambda count: SIZE * (count - 1),
        "once, however often": lambda count: SIZE,
        "half as strong": lambda count: SIZE * count / 2,
        "the other way": lambda count: -SIZE * count,
    },
    required=("no effect", "one occurrence more", "one occurrence fewer"),
)


async def check(ctx: LawContext) -> Verdict:
    return await check_penalty(ctx, PENALTY)


LAW = Law(
    id="knobs.frequency-penalty",
    sentence="frequency_penalty is subtracted from the logit of a token once for each time that the output has it.",
    why="An occurrence too many or too few changes how soon a model gives up a word, a name or a bracket.",
    method="Answers are drawn with it. At each place the odds of a token that the output has c times must be the "
    "reported raw odds times e^(−penalty · c): a sequential test of the draws. Where processed logprobs are reported, "
    "these are compared with those of the same context without it.",
    violation="Tokens that were there come again too often or too rarely.",
    check=check,
    needs=("frequency_penalty", "logprobs"),
    error_rate=SHARE,
    cost=30,
)
