"""errors.no-5xx: well-formed requests are answered."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds


async def check(ctx: LawContext) -> Verdict:
    found = ctx.server.unanswered
    if found:
        first = min(found, key=lambda made: len(str(made.body)))
        what = first.failure or f"status {first.status}: {first.error_message[:120]}"
        return broken(f"{len(found)} of {ctx.server.num_requests} requests were not answered properly: {what}", first)
    return holds(f"{ctx.server.num_requests} requests of this run")


LAW = Law(
    "errors.no-5xx",
    "No well-formed request is answered with a 5xx, a closed connection or silence.",
    "Each is a crash behind the scenes, or a field that was never tried.",
    "Nothing is sent: the requests of all laws before this one are looked through.",
    "A 500 with a traceback, a connection that closes, no byte within the timeout.",
    check,
    cost=0,
)
