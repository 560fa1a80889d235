"""streams.refusal-status: a refusal is a status, also where a stream was asked for."""

from __future__ import annotations

from tailrace_conform.cases import asking
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

WRONG = ({"temperature": "hot"}, {"max_tokens": "many"}, {"temperature": -1.0}, {"n": 0})


async def check(ctx: LawContext) -> Verdict:
    endpoint = "chat" if ctx.capabilities.offers("chat") else "completions"
    num_refused = 0
    for fields in WRONG:
        case = asking(endpoint, "plain", **fields)
        body = {"model": ctx.server.model, **case.body}
        plain = await ctx.server.request(case.path, body, wrong=True)
        if not plain.refused:
            continue
        num_refused += 1
        streamed = await ctx.server.request(case.path, body | {"stream": True}, wrong=True)
        if streamed.status == 200:
            return broken(f"{plain.status} without stream, 200 with it", streamed, plain)
    if not num_refused:
        return inconclusive("the server refuses none of the wrong requests")
    return holds(f"{num_refused} wrong requests")


LAW = Law(
    "streams.refusal-status",
    "A request that is refused without stream is refused with it, by status and before any event.",
    "After a 200 a client has told its user that the answer begins; retries and alerts look at the status.",
    "Wrong requests that are refused plain are sent with stream: true.",
    "200 with an error event, or with an empty stream.",
    check,
    needs=("stream",),
    cost=6,
)
