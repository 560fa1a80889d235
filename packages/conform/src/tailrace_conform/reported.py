"""Answers with logprobs for the exact laws of logprobs: some prompts, with and without temperature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, Refused
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import ReplyChoice, reply
from tailrace_conform.spread import TOP, seeded, unpenalised
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

NAMES = ("characters", "plain", "numbers", "story")
LENGTH = 40
# Of a choice: how many of its tokens could be judged, and what is wrong with it, or None.
Looked = tuple[int, str | None]
Look = Callable[[ReplyChoice], Looked]


async def answers(ctx: LawContext, path: str, fields: Mapping[str, Any]) -> list[tuple[Exchange, ReplyChoice]]:
    """Answers at one endpoint ("completions", "chat"), with as many logprobs as it reports. They are asked for side by
    side, and once in a run: each law looks at each answer by itself.

    Raises:
        Refused: it reports none.
    """
    name = f"reported {path} {sorted(fields.items())}"
    if name not in ctx.shared:
        texts = [PROMPTS[NAMES[at % len(NAMES)]] for at in range(max(2, min(ctx.budget.cases, 12)))]
        bodies = [seeded(ctx, {"max_tokens": LENGTH, **fields}) for _ in texts]
        first = await asked(ctx, path, texts[0], bodies[0])  # a refusal is one request
        rest = [asked(ctx, path, text, body) for text, body in zip(texts[1:], bodies[1:], strict=True)]
        ctx.shared[name] = [first, *await asyncio.gather(*rest)]
    return [(exchange, choice) for exchange in ctx.shared[name] for choice in reply(exchange).choices.values()]


async def asked(ctx: LawContext, path: str, text: str, fields: Mapping[str, Any]) -> Exchange:
    refused: Refused | None = None
    for top in TOP:
        try:
            if path == "completions":
                return await ctx.complete(prompt=text, logprobs=top, **fields)
            messages = [{"role": "user", "content": text}]
            return await ctx.chat(messages=messages, logprobs=True, top_logprobs=top, **fields)
        except Refused as error:
            refused = error
    assert refused is not None
    raise refused


async def check(ctx: LawContext, look: Look, temperature: float = 1.0) -> Verdict:
    """An exact law about each answer by itself, at both endpoints."""
    tokens, num, seen = 0, 0, False
    refused: Refused | None = None
    for path in ("chat", "completions"):
        if not ctx.capabilities.offers(path):
            continue
        try:
            made = await answers(ctx, path, {"temperature": temperature, **unpenalised(ctx)})
        except Refused as error:
            refused = error
            continue
        for exchange, choice in made:
            judged, said = look(choice)
            if said is not None:
                return broken(f"{path}: {said}", exchange)
            tokens, num, seen = tokens + judged, num + bool(judged), True
    if refused and not seen:
        raise refused
    if not tokens:
        return inconclusive("no answer has a text of tokens whose logprobs are reported")
    return holds(f"{tokens} tokens of {num} answers")
