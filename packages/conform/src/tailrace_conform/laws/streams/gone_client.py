"""streams.gone-client: a client that goes away frees its place."""

from __future__ import annotations

import asyncio
import math
import re
import time
from urllib.parse import urlsplit

from tailrace_conform.cases import PATHS, asking
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, NoAnswer, Refused
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

# gauges of requests that run or wait, as servers name them
GAUGES = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs"
    r"|tailrace_num_requests_(?:running|waiting)|llamacpp:requests_(?:processing|deferred))(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)
LONG = 1_000  # tokens of the answers that are left
PATIENCE_S = 10.0  # until the places must be free
LATE_S = 3.0  # metrics may be so old
SLOWER = 3.0  # times as long as alone: so much longer a short request takes where the places are taken
ABANDONED = 8


async def num_running(ctx: LawContext) -> float | None:
    """Requests that run or wait, by the server's own metrics; None where it has none."""
    parts = urlsplit(ctx.server.base_url)
    made = await ctx.server.request("/metrics", root=f"{parts.scheme}://{parts.netloc}")
    found = GAUGES.findall(made.text) if made.status == 200 else []
    return sum(map(float, found)) if found else None


async def num_before(ctx: LawContext) -> float | None:
    """The same before anything is opened: the lowest that is seen, since late metrics still have earlier requests."""
    found = await num_running(ctx)
    end = time.monotonic() + LATE_S
    while found and time.monotonic() < end:
        await asyncio.sleep(0.1)
        now = await num_running(ctx)
        found = found if now is None else min(found, now)
    return found


async def short(ctx: LawContext) -> float:
    """Seconds that a short answer takes: the median of three; infinite where none comes."""
    times = []
    for _ in range(3):
        begun = time.monotonic()
        try:
            await ctx.generate(max_tokens=4)
        except NoAnswer:
            return math.inf
        times.append(time.monotonic() - begun)
    return sorted(times)[1]


async def check(ctx: LawContext) -> Verdict:
    endpoint = next(name for name in PATHS if ctx.capabilities.offers(name))
    extra = {"ignore_eos": True} if ctx.capabilities.offers("ignore_eos") else {}
    case = asking(endpoint, "story", stream=True, temperature=1.0, max_tokens=LONG, **extra)
    body = {"model": ctx.server.model, **case.body}
    before, alone = await num_before(ctx), await short(ctx)
    leave = asyncio.Event()
    held: list[Exchange] = []
    opened = [asyncio.create_task(ctx.server.hold(case.path, body, leave, held)) for _ in range(ABANDONED)]
    end = time.monotonic() + PATIENCE_S
    while len(held) < ABANDONED and time.monotonic() < end:
        await asyncio.sleep(0.05)
    end = time.monotonic() + LATE_S
    while not (seen := await has_more(ctx, before)) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    crowded = await short(ctx)
    num_open = sum(not task.done() for task in opened)
    leave.set()
    exchanges = await asyncio.gather(*opened)
    if exchanges[0].refused:
        raise Refused(exchanges[0])
    if num_open < ABANDONED / 2:
        return inconclusive(f"{ABANDONED - num_open} of {ABANDONED} answers were over before their clients left")
    if before is not None:
        if not seen:
            return inconclusive(
                f"the metrics never show most of {ABANDONED} answers: they were over before their clients left"
            )
        return await by_metrics(ctx, before, exchanges[0])
    if crowded < SLOWER * alone:
        return inconclusive("no metrics, and the requests that are left do not slow another one down")
    return await by_progress(ctx, max(SLOWER * alone, crowded / 2 if crowded < math.inf else 0.0), exchanges[0])


async def has_more(ctx: LawContext, before: float | None) -> bool:
    """Whether the metrics show what was opened (late ones may still have one of `short`); always where there are
    none."""
    return before is None or (await num_running(ctx) or 0.0) >= before + ABANDONED / 2


async def by_metrics(ctx: LawContext, before: float, example: Exchange) -> Verdict:
    end = time.monotonic() + PATIENCE_S
    while (now := await num_running(ctx)) is None or now > before:
        if time.monotonic() > end:
            if now is None:
                return inconclusive("the metrics are no longer there once the clients have left")
            return broken(f"{now:g} requests still run {PATIENCE_S:g} s after all clients have left", example)
        await asyncio.sleep(0.1)
    return holds(f"{ABANDONED} clients left, and the metrics say that nothing of theirs runs")


async def by_progress(ctx: LawContext, most: float, example: Exchange) -> Verdict:
    """most: seconds that a short answer may take once the places are free: some times as long as alone, and half as
    long as beside the crowd, since other programs may have become busy meanwhile."""
    end = time.monotonic() + PATIENCE_S
    while (now := await short(ctx)) > most:
        if time.monotonic() > end:
            slower = f"takes {now:.3g} s" if now < math.inf else "does not come"
            return broken(
                f"{PATIENCE_S:g} s after all clients have left a short answer still {slower}, as it was beside them; "
                f"at most {most:.2g} s are allowed",
                example,
            )
    return holds(f"{ABANDONED} clients left, and a short answer is fast again")


LAW = Law(
    "streams.gone-client",
    "A client that closes its connection frees its place.",
    "Otherwise every closed tab goes on computing, and a reload doubles the load.",
    f"{ABANDONED} streams of {LONG:,} tokens are opened and left. Within {PATIENCE_S:g} s the server's metrics must "
    "say that they are gone; without metrics a short answer must be fast again, if the crowd had slowed it.",
    "The metrics still count them, or a short answer waits until they are done.",
    check,
    needs=("stream",),
    cost=20,
)
