"""A run: the laws in order against one server, with progress, and with a partial result where it is interrupted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tailrace_conform.capabilities import Capabilities, probe
from tailrace_conform.cases import SaysNothing
from tailrace_conform.context import LawContext, RunBudget
from tailrace_conform.errors import ConformError
from tailrace_conform.exchange import NoAnswer, Refused
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.target import NOBODY, TargetServer
from tailrace_conform.verdict import KINDS, Verdict, ignored, inconclusive, not_offered

FINDINGS = ("broken", "ignored")


@dataclass(frozen=True)
class JudgedLaw:
    """A law, its verdict, and the cost of the verdict."""

    law: Law
    verdict: Verdict
    num_requests: int
    seconds: float


@dataclass
class ConformRun:
    """What a run has found so far. unjudged: laws that are left out, by an interruption or because the server is gone.
    seed: of the run's own choices."""

    url: str
    model: str
    budget: str
    seed: int
    begun: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    judged: list[JudgedLaw] = field(default_factory=list)
    unjudged: list[Law] = field(default_factory=list)
    gone: bool = False
    capabilities: Capabilities = field(default_factory=Capabilities)
    num_requests: int = 0
    num_tokens: int = 0
    seconds: float = 0.0

    @property
    def interrupted(self) -> bool:
        return bool(self.unjudged) or self.gone

    @property
    def findings(self) -> list[JudgedLaw]:
        """What is broken or silently ignored."""
        return [one for one in self.judged if one.verdict.kind in FINDINGS]

    def counts(self) -> dict[str, int]:
        """How many laws have each verdict, in the words of the reports."""
        return {name: sum(one.verdict.kind == kind for one in self.judged) for kind, name in KINDS.items()}


@dataclass(frozen=True)
class RunState:
    """Where a run stands. law: the one that is tested; judged: the last verdict, where it is new. left_s: seconds left,
    an estimate; None at the start."""

    num_requests: int
    num_done: int
    num_laws: int
    law: str
    left_s: float | None
    judged: JudgedLaw | None = None


def chosen(laws: Sequence[Law], only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Law]:
    """The laws whose id or family is in `only` (all, where that is empty) and not in `skip`.

    Raises:
        ConformError: a name is no law's and no family's, or no law is left.
    """
    names = {law.id for law in laws} | {law.family for law in laws}
    if unknown := [name for name in (*only, *skip) if name not in names]:
        families = ", ".join(dict.fromkeys(law.family for law in laws))
        raise ConformError(f"no law and no family is called {quoted(unknown[0])}; the families are {families}")
    left = [
        law
        for law in laws
        if (not only or law.id in only or law.family in only) and law.id not in skip and law.family not in skip
    ]
    if not left:
        raise ConformError(f"what is skipped ({', '.join(skip)}) leaves no law to judge by")
    return left


async def find_model(server: TargetServer) -> str:
    """The first model that the server lists.

    Raises:
        ConformError: nobody answers there, or no model is listed.
    """
    made = await server.request("/models")
    listed = made.parsed.get("data") if isinstance(made.parsed, dict) else None
    entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    ids = [one["id"] for one in entries if isinstance(one.get("id"), str)]
    if not made.ok or not ids:
        raise ConformError(
            f"{server.base_url}/models lists no model ({made.failure or f'status {made.status}'}): "
            "is this the base URL, as http://host:8000/v1? --model names a model"
        )
    return ids[0]


class Runner:
    """One run. `run` returns what was found, also where its task is cancelled in between."""

    def __init__(self, server: TargetServer, laws: Sequence[Law], budget: RunBudget, seed: int = 0) -> None:
        self.server, self.laws, self.budget = server, list(laws), budget
        self.on_progress: Callable[[RunState], None] = lambda state: None
        self.found = ConformRun(server.base_url, server.model, budget.name, seed)
        self._begun = time.monotonic()
        self._law = "what the server offers"
        self._shared: dict[str, Any] = {}

    async def run(self) -> ConformRun:
        """Test the laws one after the other."""
        try:
            await self.prepare()
            for law in self.laws:
                await self.judge(law)
                if await self.is_gone():
                    break
        except asyncio.CancelledError:
            pass
        done = {one.law.id for one in self.found.judged}
        self.found.unjudged = [law for law in self.laws if law.id not in done]
        self.found.num_requests, self.found.num_tokens = self.server.num_requests, self.server.num_tokens
        self.found.seconds = time.monotonic() - self._begun
        return self.found

    async def prepare(self) -> None:
        """Find the server's model and its features."""
        self.server.on_request = self._report
        self.server.model = self.found.model = self.server.model or await find_model(self.server)
        limit_s = self.budget.patience * self.server.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                self.found.capabilities = await probe(self.server)
        except TimeoutError:
            raise ConformError(
                f"{self.server.base_url} did not say within {limit_s:g} s what it offers: {self.server.num_requests} "
                "requests were answered"
            ) from None

    async def is_gone(self) -> bool:
        """Whether the server is gone: then no remaining law can be judged."""
        self.found.gone = self.server.gone and (await self.server.request("/models")).failure == NOBODY
        return self.found.gone

    async def judge(self, law: Law) -> JudgedLaw:
        """Test one law, and add what was found to the run."""
        self._law = law.id
        self._report()
        begun, before = time.monotonic(), self.server.num_requests
        rng = random.Random(f"{self.found.seed} {law.id}")
        ctx = LawContext(self.server, self.found.capabilities, self.budget, rng, self._shared)
        verdict = await verdict_of(law, ctx)
        one = JudgedLaw(law, verdict, self.server.num_requests - before, time.monotonic() - begun)
        self.found.judged.append(one)
        self._report(one)
        return one

    def _report(self, judged: JudgedLaw | None = None) -> None:
        done = len(self.found.judged)
        cost = sum(one.law.cost for one in self.found.judged)
        all_cost = sum(law.cost for law in self.laws)
        left = (time.monotonic() - self._begun) * (all_cost - cost) / cost if cost else None
        self.on_progress(RunState(self.server.num_requests, done, len(self.laws), self._law, left, judged))


async def verdict_of(law: Law, ctx: LawContext) -> Verdict:
    """Return the law's own verdict, or the verdict for a feature that the server lacks or a request that it left open.

    Of a field that is accepted without a trace in the answer, the law whose subject it is (the first of its needs) says
    "ignored"; laws that only use it say "not offered".
    """
    if (name := ctx.capabilities.lacks(law.needs)) is not None:
        shown = [ctx.capabilities.exchanges[name]] if name in ctx.capabilities.exchanges else []
        if ctx.capabilities.found[name] == "refused":
            reason = shown[0].error_message[:160] if shown else "its endpoint is not there"
            return not_offered(f"{name}: {reason}", *shown)
        if name == law.needs[0]:
            return ignored(f"{name} is accepted, but the answer has nothing of it", *shown)
        return not_offered(f"{name}, which the test needs, is ignored", *shown)
    limit_s = ctx.budget.patience * ctx.server.timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await law.check(ctx)
    except TimeoutError:
        return inconclusive(
            f"not decided within {limit_s:g} s, the most that a law may take", *ctx.server.unanswered[-1:]
        )
    except SaysNothing as silent:
        return inconclusive(silent.why)
    except Refused as refused:
        return not_offered(refused.exchange.error_message[:200], refused.exchange)
    except NoAnswer as failed:
        made = failed.exchange
        return inconclusive(f"no answer: {made.failure or f'status {made.status}'}", made)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return inconclusive("an answer is not in the shape of OpenAI's API, so the law can't be judged by it")
