"""allowed_token_ids: nothing else is drawn."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, Refused
from tailrace_conform.law import Law
from tailrace_conform.plain import listed
from tailrace_conform.reply import reply
from tailrace_conform.spread import Source, seeded, source
from tailrace_conform.verdict import Verdict, broken, holds, ignored, inconclusive

IDS = (40, 50, 60, 70, 80, 1_040, 2_500, 5_000)
TOGETHER = 3


async def texts(ctx: LawContext, found: Source, ids: list[int], count: int) -> tuple[list[str], Exchange]:
    """First tokens' texts."""
    prompt = found.spread.prompt if found.spread else ""
    size = min(found.size, count)
    fields = {"allowed_token_ids": ids} if ids else {}
    body = {**found.neutral, **fields, "max_tokens": 1} | ({"n": size} if size > 1 else {})
    made = await ctx.together(ctx.generate(prompt, **seeded(ctx, body)) for _ in range(max(1, count // size)))
    return [choice.text for one in made for choice in reply(one).choices.values()], made[0]


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    plain, _ = await texts(ctx, found, [], 16)
    named: dict[int, str] = {}
    refused: Refused | None = None
    for id in IDS:
        try:
            drawn, exchange = await texts(ctx, found, [id], 16)
        except Refused as error:
            refused = error
            continue
        if len(set(drawn)) > 1:
            came = sorted(set(drawn))
            said = f"only id {id} is allowed, and {len(came)} different first tokens came: {listed(came[:5])}"
            return (ignored if set(drawn) >= set(plain) or len(set(drawn) & set(plain)) > 2 else broken)(said, exchange)
        named[id] = drawn[0]
        if len(named) == TOGETHER:
            break
    if refused and not named:
        raise refused
    if len(named) < TOGETHER or len(set(plain)) < 2 or len(set(named.values())) < 2:
        return inconclusive("too few ids are taken, they have no text, or one token has nearly all of the probability")
    drawn, exchange = await texts(ctx, found, list(named), min(64, ctx.budget.draws))
    if outside := sorted(set(drawn) - set(named.values())):
        return broken(f"the ids {listed(named)} are {listed(named.values())}, and {listed(outside[:5])} came", exchange)
    return holds(f"{len(drawn)} first tokens with {TOGETHER} ids allowed, and 16 with each of them alone")


LAW = Law(
    id="knobs.allowed-token-ids",
    sentence="With allowed_token_ids nothing else is drawn.",
    why="Classifiers and labels are read from the first token: any other token is a wrong label.",
    method="Each of a few ids is allowed alone, which must always give the same text; then some of them together, "
    "which must give no other text.",
    violation="Another token comes.",
    check=check,
    needs=("allowed_token_ids",),
    cost=8,
)
