"""errors.too-long: a prompt beyond the context is refused, not cut."""

from __future__ import annotations

from tailrace_conform.cases import asking
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.reply import reply
from tailrace_conform.verdict import Verdict, broken, holds
from tailrace_conform.wrong_requests import endpoint_of

WORDS = 300_000


async def check(ctx: LawContext) -> Verdict:
    case = asking(endpoint_of(ctx), "sea " * WORDS, max_tokens=2)
    made = await ctx.server.request(case.path, {"model": ctx.server.model, **case.body})
    if made.refused:
        return holds(f"{made.status}: {made.error_message[:80]}")
    if not made.ok:
        return broken(f"{WORDS:,} words: {made.failure or f'status {made.status}'}", made)
    count = (reply(made).usage or {}).get("prompt_tokens")
    if isinstance(count, int) and count >= WORDS:
        return holds(f"all {count:,} tokens fit")
    return broken(f"{WORDS:,} words were answered, but prompt_tokens is {quoted(count)}", made)


LAW = Law(
    "errors.too-long",
    "A prompt that does not fit into the context is refused; nothing of it is dropped in silence.",
    "An answer about half of a document looks like an answer.",
    f"A prompt of {WORDS:,} words: a 4xx, or an answer whose usage counts them all.",
    "An answer whose prompt_tokens is the context's length.",
    check,
    cost=1,
)
