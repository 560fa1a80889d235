"""errors.wrong-types: values of a wrong type are refused."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict
from tailrace_conform.wrong_requests import WRONG_TYPES, judge_refusals


async def check(ctx: LawContext) -> Verdict:
    return await judge_refusals(ctx, WRONG_TYPES)


LAW = Law(
    "errors.wrong-types",
    "A value of a wrong type is refused with a 4xx.",
    "A field that takes any type is not read at all, or fails far behind the front door.",
    "Texts for numbers, lists and objects for scalars; none that could be read leniently, as '1' could.",
    "200, or 500.",
    check,
    cost=8,
)
