"""errors.bad-json: a body that is no JSON object is a 4xx."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict, broken, holds
from tailrace_conform.wrong_requests import path_of

BODIES = ("", "{", "null", "[]", '"text"', '{"model": }', "{'model': 'x'}", '{"model": "x",}', "not json")


async def check(ctx: LawContext) -> Verdict:
    for body in BODIES:
        made = await ctx.server.request(path_of(ctx), body)
        if not made.refused:
            return broken(f"the body {quoted(body)} is answered with {made.failure or made.status}", made)
    return holds(f"{len(BODIES)} bodies")


LAW = Law(
    "errors.bad-json",
    "A body that is no JSON object is refused with a 4xx.",
    "A client's bug must not look like the server's.",
    f"{len(BODIES)} bodies: empty, cut off, null, an array, single quotes.",
    "500, or no answer.",
    check,
    cost=9,
)
