"""The temperature divides the logits: the odds of two tokens at T are their odds at 1 to the power of 1/T."""

from __future__ import annotations

from dataclasses import replace

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_LOGPROBS, judged
from tailrace_conform.expected import at_temperature, neutral
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import source
from tailrace_conform.verdict import Verdict

TEMPERATURES = (0.6, 1.5)


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    verdicts = []
    for temperature in TEMPERATURES:
        law = replace(
            at_temperature(spread, temperature),
            stated={
                "no effect": neutral(spread),
                "applied twice": at_temperature(spread, temperature**2),
                "its inverse": at_temperature(spread, 1 / temperature),
            },
        )
        verdicts.append(await judged(ctx, found, {"temperature": temperature}, law, SHARE / len(TEMPERATURES)))
        if verdicts[-1].kind != "holds":
            return verdicts[-1]
    return verdicts[0]


LAW = Law(
    id="knobs.temperature",
    sentence="At temperature T the odds of two tokens are their odds at temperature 1 to the power of 1/T.",
    why="A temperature that is applied twice, or not at all, makes every recommended setting wrong.",
    method="First tokens are drawn with many seeds at T = 0.6 and T = 1.5. A sequential test compares the counts of "
    "the reported tokens with p^(1/T); of all other tokens only bounds are known.",
    violation="The likeliest token comes too often or too rarely.",
    check=check,
    needs=("temperature", "logprobs"),
    error_rate=SHARE,
    cost=8,
)
