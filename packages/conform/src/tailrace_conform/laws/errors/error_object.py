"""errors.error-object: an error is an object that the official client can read."""

from __future__ import annotations

from typing import Any

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive
from tailrace_conform.wrong_requests import sent_wrong

WRONG: list[dict[str, Any]] = [
    {"temperature": "hot"},
    {"temperature": -1.0},
    {"max_tokens": "many"},
    {"n": 0},
]


def problem(made: Exchange) -> str | None:
    inner = made.parsed.get("error") if isinstance(made.parsed, dict) else None
    if not isinstance(inner, dict):
        return f"no error object in {quoted(made.text[:120])}"
    if not isinstance(inner.get("message"), str) or not inner["message"]:
        return f"the error has no message: {quoted(made.text[:120])}"
    return None


async def check(ctx: LawContext) -> Verdict:
    refused = [made for fields in WRONG if (made := await sent_wrong(ctx, fields)).refused]
    for made in refused:
        if said := problem(made):
            return broken(f"{made.status}: {said}", made)
    return holds(f"{len(refused)} refusals") if refused else inconclusive("no wrong request is refused")


LAW = Law(
    "errors.error-object",
    'A refusal is {"error": {"message": …}}, in JSON.',
    "The official client shows error.message; of any other shape it shows the raw body, or nothing.",
    "Four wrong requests; those that are refused must have an error object with a message.",
    'Plain text, HTML, {"detail": …}.',
    check,
    cost=4,
)
