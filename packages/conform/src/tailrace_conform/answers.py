"""Greedy answers that laws of stops cut: a stop is chosen from the text that comes without it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, check_repeatable, need_text, sent
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.plain import quoted

LENGTH = 24  # tokens
LENGTHS = (1, 3, 6, 10)  # of stops, in characters
LEAST = 8  # characters; a shorter text has no place for a stop
PROMPTS = ("story", "characters", "numbers")


async def texts(ctx: LawContext, prompts: Sequence[str] = PROMPTS) -> list[tuple[Case, str]]:
    """Greedy requests and what is answered to them without stops."""
    tried = cases(ctx, prompts, {"temperature": 0.0, "max_tokens": LENGTH})
    return list(zip(tried, await asyncio.gather(*(uncut(ctx, case) for case in tried)), strict=True))


async def long_texts(ctx: LawContext) -> list[tuple[Case, str]]:
    """Those of `texts` that have a place for a stop.

    Raises:
        SaysNothing: there are none.
    """
    found = [(case, text) for case, text in await texts(ctx) if len(text.strip()) >= LEAST]
    if not found:
        raise SaysNothing(f"no answer has {LEAST} characters, of which a stop could be taken")
    return found


async def with_stops(ctx: LawContext) -> list[Case]:
    """Greedy requests, each with a stop from the text that is answered without it; endpoints and prompts in turn."""
    found = []
    for case, text in await long_texts(ctx):
        found.append([case.having(stop=[part]) for part in pieces(ctx, text, ctx.budget.cases)])
    return in_turns(found)


def in_turns(found: Sequence[Sequence[Case]]) -> list[Case]:
    """The first of each, then the second of each, …"""
    return [case for turn in itertools.zip_longest(*found) for case in turn if case is not None]


def pieces(ctx: LawContext, text: str, count: int) -> list[str]:
    """Parts of a text that can be stops: of several lengths, from its middle, without spaces at their ends. A wide
    character first, if there is any."""
    found = [character for character in text[1:] if ord(character) > 0x7F and character != "\ufffd"][:1]
    lengths = ctx.rng.sample(LENGTHS, len(LENGTHS))
    for round in range(4 * count):
        length = lengths[round % len(lengths)]
        places = [at for at in range(2, len(text) - length) if fits(text[at : at + length])]
        if places:
            at = ctx.rng.choice(places)
            found.append(text[at : at + length])
    return list(dict.fromkeys(found))[:count]


def fits(part: str) -> bool:
    return part == part.strip() and "\ufffd" not in part and part.isprintable()


def stops_of(case: Case) -> list[str]:
    given = case.body.get("stop", [])
    return [given] if isinstance(given, str) else list(given)


def cut_before(text: str, stops: Sequence[str]) -> str:
    """The text up to the earliest match."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


async def uncut(ctx: LawContext, case: Case) -> str:
    """The text that is answered without the case's stops; asked for once in a run. Who finds another text asks again
    (check_repeatable)."""
    plain = case.having(stop=None, stream=None)
    known: dict[str, str] = ctx.shared.setdefault("uncut", {})
    if str(plain) not in known:
        known[str(plain)] = (await sent(ctx, plain))[1].text
    return known[str(plain)]


async def compared(ctx: LawContext, case: Case, made: Exchange, text: str) -> Finding | None:
    """The text against the uncut one up to the earliest match."""
    whole = await uncut(ctx, case)
    need_text(whole)
    wanted = cut_before(whole, stops_of(case))
    if text == wanted:
        return None
    await check_repeatable(ctx, case.having(stop=None, stream=None), whole)
    if not stops_of(case):  # the smallest request that shows it has none
        return Finding(f"{quoted(text[-40:])} where {quoted(whole[-40:])} was answered before", (made,))
    stops = " or ".join(map(quoted, stops_of(case)))
    if text == whole:
        return Finding(f"the text goes on after {stops}: {quoted(text)}", (made,), effect=False)
    return Finding(f"{quoted(text[-40:])} is said before {stops}; it should be {quoted(wanted[-40:])}", (made,))
