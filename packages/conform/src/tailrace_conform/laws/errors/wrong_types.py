"""errors.wrong-types: values of a wrong type are refused."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive
from tailrace_conform.wrong_requests import WRONG_TYPES, shown, tried


async def check(ctx: LawContext) -> Verdict:
    found = await tried(ctx, WRONG_TYPES)
    wrong = [one for one in found if not one[2].refused]
    if wrong:
        return broken(f"not refused: {shown(wrong)}", *(made for _, _, made in wrong))
    return holds(f"{len(found)} values") if found else inconclusive("none of the fields is offered")


LAW = Law(
    "errors.wrong-types",
    "A value of a wrong type is refused with a 4xx.",
    "A field that takes any type is not read at all, or fails far behind the front door.",
    "Texts for numbers, lists and objects for scalars; none that could be read leniently, as '1' could.",
    "200, or 500.",
    check,
    cost=8,
)
