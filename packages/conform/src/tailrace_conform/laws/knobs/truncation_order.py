"""The temperature comes before the truncations, unless the server says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_CLEAR_BOUND, NO_LOGPROBS, judged
from tailrace_conform.expected import edge, kept
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import Spread, source
from tailrace_conform.verdict import Verdict

TEMPERATURE = 0.6
# `owned_by` of /models → servers that document the temperature as the last step
LAST = ("llamacpp",)


class Bound(NamedTuple):
    """A top_p, and how many tokens it keeps of the tempered and of the untempered probabilities."""

    top_p: float
    first: int
    last: int


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    if (bound := clear_bound(spread)) is None:
        return NO_CLEAR_BOUND
    power = 1 / TEMPERATURE
    orders = {
        "the temperature comes first": kept(spread, bound.first, power),
        "the temperature comes last": kept(spread, bound.last, power),
    }
    claimed = "the temperature comes last" if await says_last(ctx) else "the temperature comes first"
    law = replace(orders[claimed], stated={name: other for name, other in orders.items() if name != claimed})
    return await judged(ctx, found, {"temperature": TEMPERATURE, "top_p": round(bound.top_p, 6)}, law, SHARE)


async def says_last(ctx: LawContext) -> bool:
    """Whether the server is one that documents the other order."""
    made = await ctx.server.request("/models")
    data = made.parsed.get("data") if isinstance(made.parsed, dict) else None
    return any(isinstance(one, dict) and one.get("owned_by") in LAST for one in data or ())


def clear_bound(spread: Spread) -> Bound | None:
    """The top_p for which the two orders differ in the most mass, clear of rounding in both."""
    power = 1 / TEMPERATURE
    scaled = [p**power for p in spread.probabilities]
    rest = spread.rest * min(spread.probabilities) ** (power - 1)  # at most: see expected.at_temperature
    tempered = [s / (sum(scaled) + rest / 2) for s in scaled]
    unsure = rest / (sum(scaled) + rest / 2) + 2 * spread.tolerance * power
    best, most = None, 0.0
    for first, last in pairs(len(scaled)):
        low = max(sum(tempered[: first - 1]), sum(spread.probabilities[: last - 1]))
        high = min(sum(tempered[:first]), sum(spread.probabilities[:last]))
        top_p, mass = (low + high) / 2, sum(tempered[first:last])
        if low >= high or mass <= most:
            continue
        if edge(tempered, first, top_p) > unsure and edge(spread.probabilities, last, top_p) > 2 * spread.tolerance:
            best, most = Bound(top_p, first, last), mass
    return best


def pairs(size: int) -> Iterator[tuple[int, int]]:
    """Numbers of tokens that the orders may keep: at a temperature below 1 the first order keeps fewer."""
    return ((first, last) for last in range(2, size) for first in range(1, last))


LAW = Law(
    id="knobs.truncation-order",
    sentence="Truncations look at the tempered probabilities, unless the server documents the other order.",
    why="The same top_p keeps other tokens in the other order; settings can't be carried from one server to another.",
    method="At temperature 0.6, top_p is set so that the two orders keep different sets, each clear of rounding. First "
    "tokens are drawn with many seeds and compared with the order that the server claims.",
    violation="Tokens come that only the other order keeps.",
    check=check,
    needs=("temperature", "top_p", "logprobs"),
    error_rate=SHARE,
)
