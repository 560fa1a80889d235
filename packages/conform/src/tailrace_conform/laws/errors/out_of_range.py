"""errors.out-of-range: values out of range are refused."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict
from tailrace_conform.wrong_requests import OUT_OF_RANGE, judge_refusals


async def check(ctx: LawContext) -> Verdict:
    return await judge_refusals(ctx, OUT_OF_RANGE)


LAW = Law(
    "errors.out-of-range",
    "A value out of a field's range is refused with a 4xx.",
    "A clamped value is a wrong answer that nobody sees; a 500 pages the operator for the caller's mistake.",
    "Values beyond any possible range (a negative temperature, top_p 1.5, n 0, …) of the fields that are offered.",
    "200, as if the value had been meant otherwise; 500.",
    check,
    cost=11,
)
