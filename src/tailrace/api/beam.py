"""Beam search, above the sampler: the algorithm on (token, logprob) candidates, and a request that runs it through the engine.

Semantics of transformers' beam search (Sutskever et al., arXiv 1409.3215; length penalty as in Wu et al., arXiv 1609.08144,
simplified): of all continuations of all beams the 2 · width best are looked at; those among the first `width` that end in
EOS are finished with score Σ logprob / length^penalty, the best others go on. Each step asks the engine for every beam's
likeliest tokens; the prefix cache shares their prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from tailrace.api import problems
from tailrace.api.observe import UNKNOWN, Origin
from tailrace.api.schema.common import PromptTokensDetails, Usage
from tailrace.errors import EngineError, RequestError, TailraceError
from tailrace.params import SamplingParams
from tailrace.wire.messages import Failed, TokenLogprobs, Tokens

if TYPE_CHECKING:
    from tailrace.api.service import Service
    from tailrace.wire.aio import AsyncStream

EarlyStopping = Literal["never"] | bool


@dataclass(frozen=True, slots=True)
class Beam:
    """tokens: drawn so far. total: sum of their logprobs. score: total / length^penalty, once finished."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    score: float = 0.0
    reason: str = "length"


@dataclass(slots=True)
class BeamSearch:
    """The state of a search. Feed `step` until `done`; `best` are the finished ones, best first.

    Args:
        early_stopping: True ends as soon as `width` are finished; False when no running beam's present score could beat the
            worst of them; "never" when none could at any length.
    """

    width: int
    max_tokens: int
    eos: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    running: list[Beam] = field(default_factory=lambda: [Beam()])
    finished: list[Beam] = field(default_factory=list)
    done: bool = False

    @property
    def candidates(self) -> int:
        """How many of each beam's likeliest tokens a step must see."""
        return (1 + max(1, len(self.eos))) * self.width

    def step(self, likeliest: list[list[tuple[int, float]]]) -> None:
        """One token more: per running beam its likeliest tokens with their logprobs."""
        continued = [
            (beam.total + logprob, beam, token)
            for beam, tokens in zip(self.running, likeliest, strict=True)
            for token, logprob in tokens
            if logprob > float("-inf")
        ]
        continued.sort(key=lambda way: -way[0])
        best = [Beam((*beam.tokens, token), total) for total, beam, token in continued[: self.candidates]]
        for place, beam in enumerate(best):
            if beam.tokens[-1] in self.eos and place < self.width:
                self._finish(beam, "stop")
        self.running = [beam for beam in best if beam.tokens[-1] not in self.eos][: self.width]
        length = len(best[0].tokens) if best else self.max_tokens
        if not self.running or length >= self.max_tokens or self._hopeless(length):
            if length >= self.max_tokens:
                for beam in self.running:
                    self._finish(beam, "length")
            self.running, self.done = [], True

    def best(self, n: int) -> list[Beam]:
        """The n best finished ones."""
        return self.finished[:n]

    def _finish(self, beam: Beam, reason: str) -> None:
        score = beam.total / len(beam.tokens) ** self.length_penalty
        self.finished.append(Beam(beam.tokens, beam.total, score, reason))
        self.finished.sort(key=lambda done: -done.score)
        del self.finished[self.width :]

    def _hopeless(self, length: int) -> bool:
        """No running beam can become one of the best."""
        if len(self.finished) < self.width:
            return False
        if self.early_stopping is True:
            return True
        longest = self.max_tokens if self.early_stopping == "never" and self.length_penalty > 0 else length
        return self.running[0].total / longest**self.length_penalty <= self.finished[-1].score


class BeamRequest:
    """One beam search through the engine. `abort` and `fail` may be called at any time."""

    def __init__(
        self,
        service: Service,
        id: str,
        prompt: list[int],
        params: SamplingParams,
        search: BeamSearch,
        origin: Origin = UNKNOWN,
    ) -> None:
        self._origin = origin
        self.id, self._service, self._prompt, self._search, self._n = id, service, prompt, search, params.n
        self._record = service.observer.begin(origin, id, self.name, params)
        # the engine's part: one token, and what else could have come, of the edited logits
        self._params = msgspec.structs.replace(
            params, n=1, temperature=0.0, max_tokens=1, min_tokens=0, logprobs=search.candidates, logprobs_mode="processed", ignore_eos=True
        )  # fmt: skip
        self._streams: list[AsyncStream] = []
        self._failure: TailraceError | None = None
        self._aborted = False

    @property
    def name(self) -> str:
        """The request's own id."""
        return self.id.removeprefix("cmpl-")

    @property
    def usage(self) -> Usage:
        """Tokens of the prompt, and of the answer as far as it is known."""
        prompt, completion = len(self._prompt), sum(len(beam.tokens) for beam in self._search.best(self._n))
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails())

    async def run(self) -> None:
        """Feed the search until it is done.

        Raises:
            TailraceError: the engine refused or failed.
        """
        self._service.supervisor.check()
        self._service.live.add(self)
        timer = self._service.limited(self._origin.deadline_s, self.cut)
        try:
            while not self._search.done:
                if self._aborted:
                    raise self._failure or EngineError("the request was aborted")
                entries = await asyncio.gather(*(self._one(beam) for beam in self._search.running))
                self._record.first_token()
                self._search.step([list(zip(e.top_ids, e.top_logprobs, strict=True)) for e in entries])
            for place, beam in enumerate(self._search.best(self._n)):
                self._record.finished(place, beam.reason)
        except Exception as error:
            self._record.interrupted(None, error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self.abort("closed")
            self._service.live.discard(self)
            self._record.end(self.usage)

    def cut(self, cause: str) -> None:
        """A search has nothing to show before its end."""
        self.fail(RequestError(f"the search was ended: {cause}"), cause)

    def abort(self, cause: str) -> None:
        """End whatever is open. Idempotent."""
        self._aborted = True
        if not self._search.done:
            self._record.interrupted(cause)
        for stream in self._streams:
            stream.abort(cause)
        self._streams.clear()

    def fail(self, error: TailraceError, cause: str) -> None:
        """End whatever is open; `run` then raises the error."""
        self._failure = error
        if not self._search.done:
            self._record.interrupted(cause, error)
        self.abort(cause)

    async def _one(self, beam: Beam) -> TokenLogprobs:
        """What could follow a beam."""
        stream = self._service.client.submit(
            [*self._prompt, *beam.tokens], self._params, id=self.id, priority=self._origin.priority
        )
        self._streams.append(stream)
        found: TokenLogprobs | None = None
        async with stream:
            async for events in stream:
                for event in events:
                    if isinstance(event, Failed):
                        raise problems.of_failed(event)
                    if isinstance(event, Tokens) and event.logprobs:
                        found = event.logprobs[0]
        with contextlib.suppress(ValueError):
            self._streams.remove(stream)
        if found is None:
            raise self._failure or EngineError("the engine's stream ended without a token")
        return found
