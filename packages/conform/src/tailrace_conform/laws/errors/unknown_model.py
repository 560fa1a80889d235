"""errors.unknown-model: a model that is not there is refused."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict, broken, holds, ignored
from tailrace_conform.wrong_requests import sent_wrong

NAME = "no-such-model-of-anybody"


async def check(ctx: LawContext) -> Verdict:
    made = await sent_wrong(ctx, {"model": NAME})
    if made.ok:
        return ignored(f"{NAME} answers", made)
    if not made.refused:
        return broken(f"{made.failure or made.status} for a model that is not there", made)
    if NAME not in made.text and "model" not in made.text.lower():
        return broken(f"the error does not say that it is the model: {quoted(made.text[:120])}", made)
    return holds(f"{made.status}: {made.error_message[:80]}")


LAW = Law(
    "errors.unknown-model",
    "A model that the server does not have is refused, and the error says so.",
    "Otherwise a typo is answered by another model than the one that was asked for.",
    f"A request to the model {NAME}.",
    "An answer of whichever model is loaded: the field is ignored.",
    check,
    cost=1,
)
