"""errors.neighbours: wrong requests do not harm those beside them."""

from __future__ import annotations

from tailrace_conform.cases import PATHS, Case, Unrepeatable, asking, check_repeatable, need_text, send, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.reply import reply
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive
from tailrace_conform.wrong_requests import OUT_OF_RANGE, WRONG_TYPES, sent_wrong

ROUNDS = 2


async def check(ctx: LawContext) -> Verdict:
    endpoint = next(name for name in PATHS if ctx.capabilities.offers(name))
    case = asking(endpoint, "story", temperature=0.0, max_tokens=64, stream=ctx.capabilities.offers("stream"))
    _, alone = await sent(ctx, case)
    need_text(alone.choice().said)
    wrong = (OUT_OF_RANGE + WRONG_TYPES) * ROUNDS
    body = {"model": ctx.server.model, **case.body}
    burst = [sent_wrong(ctx, {name: value}) for name, value in wrong]
    made = (await ctx.together([ctx.server.request(case.path, body), *burst]))[0]
    if not made.ok:
        return broken(f"an answer beside wrong requests: {made.failure or made.status}", made)
    said = reply(made).text
    if reply(made).choice().said == alone.choice().said:
        return holds(f"an answer beside {len(wrong)} wrong requests")
    try:
        await check_repeatable(ctx, case, alone.text)
        await beside_others(ctx, case, alone.text)
    except Unrepeatable:
        return inconclusive("the greedy answer is another one beside any other request")
    return broken(f"{quoted(said[-60:])} beside wrong requests, {quoted(alone.text[-60:])} alone", made)


async def beside_others(ctx: LawContext, case: Case, text: str) -> None:
    """Raise Unrepeatable where proper neighbours change the answer as well."""
    made = (await ctx.together([send(ctx, case), *(ctx.generate(max_tokens=2) for _ in range(8))]))[0]
    if reply(made).text != text:
        raise Unrepeatable


LAW = Law(
    "errors.neighbours",
    "Wrong requests change nothing for the requests beside them.",
    "On a shared server one user's mistakes must not be another user's outage.",
    "A greedy answer, streamed if the server can, runs beside a burst of wrong requests; its text must be the same as "
    "alone. Where proper neighbours change the text as well, nothing is said.",
    "The answer breaks off, stalls, or says something else.",
    check,
    cost=40,
)
