"""Tokens within answers come as often as their reported probabilities say."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_LOGPROBS
from tailrace_conform.law import Law
from tailrace_conform.paths import Bet, Bets, Path, Place, follow, path_verdict
from tailrace_conform.sequential import SHARE, tempered
from tailrace_conform.spread import source
from tailrace_conform.verdict import Verdict

# exponents of the stated deviations by the draws that the budget has
EXPONENTS = ((1_000, 1.6), (10_000, 1.3), (1 << 62, 1.15))


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if found.spread is None:
        return NO_LOGPROBS
    return path_verdict(await follow(ctx, found, {}, bets_for(ctx.budget.draws), SHARE))


def bets_for(draws: int) -> Bets:
    exponent = next(size for most, size in EXPONENTS if draws < most)

    def bets(path: Path, at: int, place: Place) -> Bet:
        return Bet(
            stated={
                f"drawn at temperature 1/{exponent}": tempered(place.law, exponent),
                f"drawn at temperature {exponent}": tempered(place.law, 1 / exponent),
            }
        )

    return bets


LAW = Law(
    id="logprobs.paths",
    sentence="At every place of an answer tokens come as often as the probabilities that are reported for the place.",
    why="A sampler can be right for the first token alone: what is kept from step to step goes wrong later.",
    method="Answers are drawn with neutral knobs. Each token is one draw from the distribution reported for its place; "
    "a sequential test bets on draws at a higher or lower temperature.",
    violation="Along answers likely tokens come too often or too rarely.",
    check=check,
    needs=("logprobs", "temperature"),
    error_rate=SHARE,
)
