"""errors.unknown-field: a field that does not exist is refused."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds, ignored
from tailrace_conform.wrong_requests import sent_wrong

FIELD = "temprature"


async def check(ctx: LawContext) -> Verdict:
    made = await sent_wrong(ctx, {FIELD: 0.5})
    if made.refused:
        return holds(f"{made.status}: {made.error_message[:80]}")
    if made.ok:
        return ignored(f"{FIELD} is accepted without a word", made)
    return broken(f"{made.failure or made.status} where {FIELD} should be refused", made)


LAW = Law(
    "errors.unknown-field",
    "A field that the server does not know is refused.",
    "A misspelt temperature, or a field of another server, is otherwise a setting that is silently not used.",
    f"A request with the field {FIELD}.",
    "200: the field is ignored.",
    check,
    cost=1,
)
