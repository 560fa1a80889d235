"""The reported probabilities of a first token, and draws of it: what statistical laws compare.

One prompt serves all of them: of a few, that whose likeliest tokens hold much mass, but none of them nearly all. It is
asked for with knobs at their neutral values, where raw and processed logprobs are the same, so nothing depends on
which of them a server reports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, Refused
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import ReplyToken, reply

Key = bytes | str
# Nothing but how evenly models go on after them matters.
OPENINGS = (
    "Here is a list of random digits: 7 3 9 1 4 8 2 5 0 6 3 8",
    "Heads or tails? I flip the coin, and it is",
    "Pick any colour. My colour is",
    PROMPTS["plain"],
    PROMPTS["story"],
)
TOP = (20, 5)  # logprobs asked for; the second where the first is refused
EVERY_TOKEN = 1 << 20  # as top_k; what turns it off is 0 for some servers, -1 for others, and refused by the rest
SIZES = (64, 16, 4)  # of n, the largest that a server takes
# Logprobs are rounded: by float32 to about 1e-5, by printing with four digits to 1e-4 and more. 0.005 covers both.
SAME_STEP = 0.005
# Between requests the logits of bfloat16 models move with the batch: an ulp of a logit in [16, 32) is 0.125. What is
# seen to move between equal requests counts twice, but at most LARGEST_JITTER; less than ACROSS is never assumed.
ACROSS, LARGEST_JITTER = 0.02, 0.25


@dataclass(frozen=True)
class Spread:
    """A first token's reported distribution.

    keys, probabilities: of the likeliest tokens, in falling order. usable: which of the keys name one token for certain
    (an end token has no text, and pieces of a character may all be shown as U+FFFD). tolerance: see ACROSS.
    """

    prompt: str
    keys: tuple[Key, ...]
    probabilities: tuple[float, ...]
    usable: tuple[bool, ...]
    tolerance: float
    exchange: Exchange

    @property
    def rest(self) -> float:
        """The mass of all tokens that are not reported."""
        return max(0.0, 1.0 - sum(self.probabilities))

    @property
    def worth(self) -> float:
        """How much a draw can tell: the mass of usable tokens, times the chance that two of them differ."""
        used = [p for p, one in zip(self.probabilities, self.usable, strict=True) if one]
        mass = sum(used)
        return mass * (1.0 - sum((p / mass) ** 2 for p in used)) if mass else 0.0


@dataclass(frozen=True)
class Source:
    """How first tokens are drawn. spread: None where no logprobs are reported. size: choices per request. neutral: the
    knobs that the server knows, at values without effect."""

    spread: Spread | None
    size: int
    neutral: Mapping[str, Any]


def key_of(token: ReplyToken) -> Key:
    return token.text if token.raw is None else token.raw


def names_one_token(key: Key) -> bool:
    text = key.decode(errors="replace") if isinstance(key, bytes) else key
    special = text.startswith("<") and text.endswith(">") and len(text) > 2
    return bool(text) and "\ufffd" not in text and not special


def neutral_fields(ctx: LawContext) -> dict[str, Any]:
    """Knobs off, by name: some servers have other defaults (top_k 40, a model's own top_p)."""
    return offered(ctx, {"temperature": 1.0, "top_p": 1.0, "top_k": EVERY_TOKEN, "min_p": 0.0}) | unpenalised(ctx)


def unpenalised(ctx: LawContext) -> dict[str, Any]:
    """Penalties off: some servers and models have one by default, which no report of raw logprobs shows."""
    names = ("repetition_penalty", "repeat_penalty")  # of one field: a server may refuse both with two values
    return next((found for name in names if (found := offered(ctx, {name: 1.0}))), {})


def offered(ctx: LawContext, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if ctx.capabilities.offers(name)}


def top_of(token: ReplyToken) -> dict[Key, float]:
    """Reported key → logprob, likeliest first; the probabilities of tokens that share a key are added."""
    found: dict[Key, float] = {}
    for text, raw, value in sorted(token.top, key=lambda one: -one[2]):
        key = text if raw is None else raw
        # in falling order: the value that is there is the larger one
        found[key] = found[key] + math.log1p(math.exp(value - found[key])) if key in found else value
    return found


async def spread_of(ctx: LawContext, prompt: str, **fields: Any) -> Spread | None:
    """What is reported of the prompt's first token; None where nothing is."""
    for top in TOP:
        try:
            made = await ctx.generate(prompt, logprobs=top, max_tokens=1, **fields)
        except Refused:
            continue
        tokens = reply(made).choice().tokens
        if not tokens or not tokens[0].top:
            return None
        found = {key: value for key, value in top_of(tokens[0]).items() if math.exp(value) > 0}
        if not found:
            return None
        if len(found) > top:  # the drawn token is reported beside the likeliest
            found = dict(list(found.items())[:top])
        shared = len(top_of(tokens[0])) < len(tokens[0].top)
        usable = tuple(not shared and names_one_token(key) for key in found)
        return Spread(prompt, tuple(found), tuple(map(math.exp, found.values())), usable, ACROSS, made)
    return None


async def source(ctx: LawContext) -> Source:
    """The run's prompt and how to draw from it, found once."""
    if "source" not in ctx.shared:
        ctx.shared["source"] = await find_source(ctx)
    return ctx.shared["source"]


async def find_source(ctx: LawContext) -> Source:
    neutral = neutral_fields(ctx)
    best: Spread | None = None
    if ctx.capabilities.offers("logprobs"):
        for prompt in OPENINGS:
            found = await spread_of(ctx, prompt, **neutral)
            if found and (best is None or found.worth > best.worth):
                best = found
    if best is not None:
        best = await with_tolerance(ctx, best, neutral)
    return Source(best, await largest_n(ctx, best.prompt if best else OPENINGS[0], neutral), neutral)


async def with_tolerance(ctx: LawContext, spread: Spread, neutral: Mapping[str, Any]) -> Spread:
    """The spread with the tolerance that equal requests, sent together, call for."""
    again = await ctx.together(
        ctx.generate(spread.prompt, logprobs=len(spread.keys), max_tokens=1, **neutral) for _ in range(4)
    )
    first = {key: math.log(p) for key, p in zip(spread.keys, spread.probabilities, strict=True) if p > 0}
    moved = 0.0
    for made in again:
        tokens = reply(made).choice().tokens
        seen = top_of(tokens[0]) if tokens else {}
        moved = max([moved, *(abs(seen[key] - value) for key, value in first.items() if key in seen)])
    tolerance = min(LARGEST_JITTER, max(ACROSS, 2 * moved))
    return Spread(spread.prompt, spread.keys, spread.probabilities, spread.usable, tolerance, spread.exchange)


async def largest_n(ctx: LawContext, prompt: str, neutral: Mapping[str, Any]) -> int:
    """How many choices a request may ask for; 1 where the choices of one request are all alike."""
    if not ctx.capabilities.offers("n"):
        return 1
    for size in SIZES:
        try:
            made = await ctx.generate(prompt, n=size, max_tokens=8, **seeded(ctx, {**neutral}))
        except Refused:
            continue
        texts = [choice.said for choice in reply(made).choices.values()]
        if len(texts) == size:
            return size if len(set(texts)) > 1 else 1
    return 1


def seeded(ctx: LawContext, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with a fresh seed, where seeds are offered: a run can be repeated."""
    return fields | {"seed": ctx.rng.randrange(2**31)} if ctx.capabilities.offers("seed") else fields


async def draw(
    ctx: LawContext, found: Source, fields: Mapping[str, Any], count: int
) -> tuple[Counter[Key | None], Exchange]:
    """About `count` first tokens drawn with the fields, counted by key, and one of the requests. None: a token without
    a name of its own, or none at all (the end)."""
    assert found.spread is not None
    usable = {key for key, one in zip(found.spread.keys, found.spread.usable, strict=True) if one}
    requests = max(1, count // found.size)
    body = {**found.neutral, **fields} | ({"n": found.size} if found.size > 1 else {})
    made = await ctx.together(
        ctx.generate(found.spread.prompt, logprobs=1, max_tokens=1, **seeded(ctx, body)) for _ in range(requests)
    )
    counts: Counter[Key | None] = Counter()
    for one in made:
        for choice in reply(one).choices.values():
            key = key_of(choice.tokens[0]) if choice.tokens else None
            counts[key if key in usable else None] += 1
    return counts, made[0]
