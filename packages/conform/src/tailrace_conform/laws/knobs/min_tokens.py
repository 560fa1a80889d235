"""min_tokens: the answer has at least min_tokens tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.law import Law
from tailrace_conform.reply import ReplyChoice, reply
from tailrace_conform.spread import Source, key_of, names_one_token, seeded, source
from tailrace_conform.verdict import Verdict, broken, holds, ignored, inconclusive

LEAST = 3
SHORT = "Answer with a single word, yes or no: is the sea blue?"


async def lengths(ctx: LawContext, found: Source, prompt: str, count: int, **fields: Any) -> tuple[list[int], Exchange]:
    """How many tokens answers have before they end by themselves; an answer that is cut counts as long."""
    size = min(found.size, count)
    body: Mapping[str, Any] = {**found.neutral, **fields, "max_tokens": LEAST + 1} | ({"n": size} if size > 1 else {})
    made = await ctx.together(
        ctx.generate(prompt, logprobs=1, **seeded(ctx, dict(body))) for _ in range(max(1, count // size))
    )
    return [length(choice) for one in made for choice in reply(one).choices.values()], made[0]


def length(choice: ReplyChoice) -> int:
    """The tokens without the one that ends the answer, where it is among those that are reported."""
    if choice.finish_reason != "stop":
        return LEAST + 1
    ended = bool(choice.tokens) and not names_one_token(key_of(choice.tokens[-1]))
    return len(choice.tokens) - ended


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    count = min(512, max(64, ctx.budget.draws // 2))
    for prompt in (found.spread.prompt if found.spread else "", SHORT):
        without, _ = await lengths(ctx, found, prompt, min(count, 128))
        if min(without) < LEAST:
            break
    else:
        return inconclusive(f"no answer was shorter than {LEAST} tokens without it")
    made, exchange = await lengths(ctx, found, prompt, count, min_tokens=LEAST)
    short = [one for one in made if one < LEAST]
    share = sum(one < LEAST for one in without) / len(without)
    if not short:
        return holds(f"none of {len(made)} answers ended before {LEAST} tokens; without it {share:.0%} did")
    said = f"{len(short)} of {len(made)} answers ended before {LEAST} tokens, the shortest after {min(short)}"
    return (ignored if len(short) > len(made) * share / 2 else broken)(said, exchange)


LAW = Law(
    id="knobs.min-tokens",
    sentence="An answer with min_tokens does not end by itself before so many tokens.",
    why="It keeps empty and cut answers out of evaluations and of data that is made.",
    method="Answers that end early without it are drawn again with it, with many seeds.",
    violation="An answer is shorter.",
    check=check,
    needs=("min_tokens", "logprobs"),
    cost=8,
)
