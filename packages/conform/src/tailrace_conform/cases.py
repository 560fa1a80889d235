"""Exact laws try cases until one breaks, then look for the smallest request that still does.

A case is a request. A judge sends it, in as many ways as it wants, and returns a finding or None.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, NoAnswer, Refused
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import FoldedReply, reply
from tailrace_conform.verdict import Verdict, broken, holds, ignored

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
NEEDED = frozenset({"model", "prompt", "messages", "stream"})  # without them a request is another one
SMALLER = 12  # requests that are tried smaller, at most


@dataclass(frozen=True)
class Case:
    """A request: where it goes and its fields, without the model."""

    path: str
    body: Mapping[str, Any]

    @property
    def chat(self) -> bool:
        return self.path == PATHS["chat"]

    def having(self, **fields: Any) -> Case:
        """The same request with other fields; those that are None are left out."""
        body = {**self.body, **fields}
        return replace(self, body={name: value for name, value in body.items() if value is not None})


@dataclass(frozen=True)
class Finding:
    """What speaks against the law. effect: False where the field seems to be ignored altogether."""

    said: str
    exchanges: tuple[Exchange, ...]
    effect: bool = True


class SaysNothing(Exception):  # noqa: N818
    """This case says nothing about the law: what it is about did not occur. why: as a reason of a verdict."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Unrepeatable(SaysNothing):
    """The same request was answered differently twice."""

    def __init__(self) -> None:
        super().__init__("the same request is answered differently each time")


def need_text(*texts: str) -> None:
    """Raise SaysNothing unless one of the texts has more than spaces: nothing equals nothing on any server."""
    if not any(text.strip() for text in texts):
        raise SaysNothing("the answers have no text")


Judge = Callable[[LawContext, Case], Awaitable[Finding | None]]


def asking(endpoint: str, prompt: str, **fields: Any) -> Case:
    """A case of an endpoint with one of PROMPTS, or a text."""
    text = PROMPTS.get(prompt, prompt)
    asked = {"prompt": text} if endpoint == "completions" else {"messages": [{"role": "user", "content": text}]}
    return Case(PATHS[endpoint], {**asked, "max_tokens": 16, **fields})


def cases(ctx: LawContext, prompts: Sequence[str], *field_sets: Mapping[str, Any]) -> list[Case]:
    """Each set of fields with each prompt at each endpoint that is offered; as many as the budget has, endpoints and
    sets of fields before prompts."""
    endpoints = [name for name in PATHS if ctx.capabilities.offers(name)]
    made = [asking(endpoint, prompt, **fields) for prompt in prompts for fields in field_sets for endpoint in endpoints]
    return made[: max(ctx.budget.cases, 2) * len(endpoints)]


async def send(ctx: LawContext, case: Case, **fields: Any) -> Exchange:
    """Send a case, with some fields changed."""
    return await ctx.ask(case.path, dict(case.having(**fields).body))


async def sent(ctx: LawContext, case: Case, **fields: Any) -> tuple[Exchange, FoldedReply]:
    """The same, with the fold of the answer."""
    made = await send(ctx, case, **fields)
    return made, reply(made)


async def check_repeatable(ctx: LawContext, case: Case, text: str) -> None:
    """Raise Unrepeatable unless the request's text is the same again."""
    if (await sent(ctx, case))[1].text != text:
        raise Unrepeatable


async def judged(ctx: LawContext, tried: Sequence[Case], judge: Judge, alone: bool = True) -> Verdict:
    """The verdict on a law with these cases. They are tried side by side; a finding counts if the case shows it alone
    too, unless the law says that neighbours are no excuse (alone=False).

    Raises:
        Refused: every case was refused.
        SaysNothing: no case says anything.
    """
    ended = await asyncio.gather(*(judge(ctx, case) for case in tried), return_exceptions=True)
    num_held, silent = 0, Counter[str]()
    refused: Refused | None = None
    for case, end in zip(tried, ended, strict=True):
        beside = end
        if isinstance(end, Finding):
            try:
                end = await judge(ctx, case) or Unrepeatable()
            except SaysNothing as error:
                end = error
        if isinstance(end, Finding):
            found = await smallest(ctx, case, end, judge)
            return (broken if found.effect else ignored)(found.said, *found.exchanges)
        if isinstance(beside, Finding) and not alone:
            return broken(f"{beside.said}, beside {len(tried) - 1} other requests", *beside.exchanges)
        if isinstance(end, Refused):
            refused = end
        elif isinstance(end, SaysNothing):
            silent[end.why] += 1
        elif isinstance(end, BaseException):
            raise end
        else:
            num_held += 1
    if num_held:
        left = f", {silent.total()} that say nothing" if silent else ""
        return holds(f"{num_held} cases{left}")
    if refused is not None:
        raise refused
    raise SaysNothing(" or ".join(silent) or "the answers have nothing of what the law is about")


async def smallest(ctx: LawContext, case: Case, finding: Finding, judge: Judge) -> Finding:
    """Drop fields and halve lengths as long as the same is found."""
    left, goes_on = SMALLER, True
    while goes_on and left:
        goes_on = False
        for smaller in shrunken(case):
            if not left:
                break
            left -= 1
            try:
                found = await judge(ctx, smaller)
            except (SaysNothing, Refused, NoAnswer):
                continue
            if found is not None and found.effect == finding.effect:
                case, finding, goes_on = smaller, found, True
                break
    return finding


def shrunken(case: Case) -> list[Case]:
    """Requests that are a little smaller."""
    made = [case.having(**{name: None}) for name in case.body if name not in NEEDED | {"max_tokens", "temperature"}]
    if isinstance(case.body.get("max_tokens"), int) and case.body["max_tokens"] > 1:
        made.append(case.having(max_tokens=case.body["max_tokens"] // 2))
    return made
