"""The tools of a law: the server, its features, the budget, prompts, and helpers that send requests.

The helpers raise `Refused` where the server refuses a request clearly, and `NoAnswer` where it does not answer. A law
that wants to see such answers calls `server.request` itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tailrace_conform.capabilities import Capabilities
from tailrace_conform.exchange import Exchange, NoAnswer, Refused
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import FoldedReply, reply
from tailrace_conform.target import TargetServer


@dataclass(frozen=True)
class RunBudget:
    """How much a run may ask. draws: tokens that a statistical law may draw, at most. cases: how many of its cases an
    exact law tries. crowd: requests at once, where a law wants a crowd. patience: a law ends after so many times the
    server's timeout, decided or not."""

    name: str
    draws: int
    cases: int
    crowd: int
    patience: int


BUDGETS = {
    "quick": RunBudget("quick", 256, 3, 16, 10),
    "normal": RunBudget("normal", 2_000, 10, 32, 30),
    "thorough": RunBudget("thorough", 20_000, 40, 32, 120),
}


@dataclass
class LawContext:
    """A run as a law sees it. rng: the law's own, seeded by the run's seed and the law's id. shared: what laws of one
    run find out once (spread.py)."""

    server: TargetServer
    capabilities: Capabilities
    budget: RunBudget = BUDGETS["normal"]
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    shared: dict[str, Any] = field(default_factory=dict)

    async def complete(self, crowded: bool = False, **fields: Any) -> Exchange:
        """A completion; model, a prompt and max_tokens 16 are filled in. A field that is None is left out."""
        body = {"prompt": PROMPTS["plain"], "max_tokens": 16} | fields
        return await self.ask("/completions", body, crowded)

    async def chat(self, crowded: bool = False, **fields: Any) -> Exchange:
        """A chat completion; model, a question and max_tokens 16 are filled in. A field that is None is left out."""
        body = {"messages": [{"role": "user", "content": PROMPTS["plain"]}], "max_tokens": 16} | fields
        return await self.ask("/chat/completions", body, crowded)

    async def generate(self, prompt: str = "", logprobs: int | None = None, **fields: Any) -> Exchange:
        """A completion where the server offers completions, else a chat whose only message is the prompt. logprobs: so
        many of the likeliest tokens are reported, in either endpoint's spelling."""
        fields = self.spelled(fields, logprobs)
        if self.capabilities.offers("completions"):
            return await self.complete(prompt=prompt or PROMPTS["plain"], **fields)
        return await self.chat(messages=[{"role": "user", "content": prompt or PROMPTS["plain"]}], **fields)

    def spelled(self, fields: dict[str, Any], logprobs: int | None) -> dict[str, Any]:
        """The fields with `logprobs` as the endpoint of `generate` spells it."""
        if logprobs is None:
            return fields
        if self.capabilities.offers("completions"):
            return fields | {"logprobs": logprobs}
        return fields | {"logprobs": True, "top_logprobs": logprobs}

    async def ask(self, path: str, body: dict[str, Any], crowded: bool = False) -> Exchange:
        """Send a well-formed request.

        Raises:
            Refused: the server answered 4xx.
            NoAnswer: it answered 5xx, nothing in time, or broke the connection.
        """
        full = {"model": self.server.model} | body
        made = await self.server.request(path, {k: v for k, v in full.items() if v is not None}, crowded=crowded)
        if made.refused:
            raise Refused(made)
        if not made.ok:
            raise NoAnswer(made)
        return made

    async def together(self, calls: Iterable[Any]) -> list[Exchange]:
        """Await calls of the helpers at once; the first that raises ends all."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call) for call in calls]
        except* (Refused, NoAnswer) as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def replies(self, calls: Iterable[Any]) -> list[FoldedReply]:
        """The same, folded."""
        return [reply(made) for made in await self.together(calls)]
