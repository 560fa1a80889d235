"""First tokens come as often as their reported probabilities say."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_LOGPROBS, explained, figures_of, listed, until_decided
from tailrace_conform.expected import neutral
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import source
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    law = neutral(spread)
    outcome = await until_decided(ctx, found, {}, law, SHARE)
    if outcome.finding == "broken":
        return broken(explained(law, outcome), outcome.exchange, spread.exchange, **figures_of(outcome))
    if outcome.finding == "holds":
        return holds(listed(outcome), **figures_of(outcome))
    return inconclusive(listed(outcome), outcome.exchange, **figures_of(outcome))


LAW = Law(
    id="logprobs.frequencies",
    sentence="First tokens come as often, over seeds, as their reported probabilities say.",
    why="If this fails, something between the model and the text is not what was asked for: a hidden top-p, a hidden "
    "temperature, biased noise, seeds that come again, or logprobs of something else.",
    method="With all knobs at neutral values, first tokens are drawn with many seeds. A sequential test compares their "
    "counts with the reported probabilities of the likeliest tokens and with the mass of the rest.",
    violation="A token comes clearly more often or more rarely than its logprob says.",
    check=check,
    needs=("logprobs", "temperature"),
    error_rate=SHARE,
)
