"""errors.unknown-path: an unknown path is answered with a 404."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds


async def check(ctx: LawContext) -> Verdict:
    for method, path, status in (("GET", "/no-such-path", 404), ("POST", "/chat/completion", 404)):
        made = await ctx.server.request(path, {} if method == "POST" else None, method=method)
        if made.status != status:
            return broken(f"{method} {path} is {made.failure or made.status}, not {status}", made)
    return holds("two paths")


LAW = Law(
    "errors.unknown-path",
    "A path that does not exist is a 404.",
    "A base URL with a typo must fail as one.",
    "A GET and a POST to paths that no server has.",
    "200 with a page, 500.",
    check,
    cost=2,
)
