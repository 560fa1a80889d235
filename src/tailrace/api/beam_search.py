"""Beam search, above the sampler: the algorithm on (token, logprob) candidates, and a request that runs it through the
engine.

Semantics of transformers' beam search (Sutskever et al., arXiv 1409.3215; length penalty as in Wu et al., arXiv
1609.08144, simplified). A step ranks all continuations of all beams and keeps the best (1 + E) · width. E is the
number of EOS ids, at least 1. Those among the first `width` that end in EOS are finished with score Σ logprob /
length^penalty. The best others continue. Each step asks the engine for every beam's likeliest tokens. The prefix cache
shares the beams' prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tailrace.api import error_handlers
from tailrace.api.request_record import UNKNOWN, RequestOrigin, details_of
from tailrace.api.schema.common import EarlyStopping, PromptTokensDetails, Timings, Usage
from tailrace.errors import EngineError, TailraceError
from tailrace.params import FIELDS, SamplingParams
from tailrace.text.output import Delta, TextStream
from tailrace.text.splitter import ReasoningTokens
from tailrace.wire.messages import Failed, FinishReason, TokenLogprobs, Tokens

if TYPE_CHECKING:
    from tailrace.api.service import Service
    from tailrace.wire.async_stream import AsyncStream

T = TypeVar("T")

REFINED = {name: field.default for name, field in FIELDS.items() if field.kind in ("reshape", "truncation")}


@dataclass(frozen=True, slots=True)
class Beam:
    """tokens: drawn so far. total: sum of their logprobs. score: total / length^penalty, once finished."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    score: float = 0.0
    reason: FinishReason = "length"


@dataclass(slots=True)
class BeamSearch:
    """The state of a search. Call `step` until `done`; then `select_best` returns the finished beams, best first.

    Args:
        early_stopping: True ends as soon as `width` are finished; False when no running beam's present score could beat
            the worst of them; "never" when none could at any length.
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
                self._finish_beam(beam, "stop")
        self.running = [beam for beam in best if beam.tokens[-1] not in self.eos][: self.width]
        length = len(best[0].tokens) if best else self.max_tokens
        if not self.running or length >= self.max_tokens or self._is_decided(length):
            if length >= self.max_tokens:
                for beam in self.running:
                    self._finish_beam(beam, "length")
            self.running, self.done = [], True

    def cut(self) -> None:
        """End the search here: running beams are finished as they are."""
        for beam in self.running:
            self._finish_beam(beam, "abort")
        self.running, self.done = [], True

    def select_best(self, n: int) -> list[Beam]:
        """The n best finished ones."""
        return self.finished[:n]

    def _finish_beam(self, beam: Beam, reason: FinishReason) -> None:
        score = beam.total / max(1, len(beam.tokens)) ** self.length_penalty
        self.finished.append(Beam(beam.tokens, beam.total, score, reason))
        self.finished.sort(key=lambda done: -done.score)
        del self.finished[self.width :]

    def _is_decided(self, length: int) -> bool:
        """No running beam can become one of the best."""
        if len(self.finished) < self.width:
            return False
        if self.early_stopping is True:
            return True
        longest = self.max_tokens if self.early_stopping == "never" and self.length_penalty > 0 else length
        return self.running[0].total / longest**self.length_penalty <= self.finished[-1].score


class BeamRequest:
    """One beam search through the engine, read like a `Generation`; nothing comes before its end.

    Iterate `deltas` once. `abort`, `fail` and `cut` may be called at any time.
    """

    def __init__(
        self,
        service: Service,
        id: str,
        prompt: list[int],
        params: SamplingParams,
        search: BeamSearch,
        origin: RequestOrigin = UNKNOWN,
    ) -> None:
        self._origin = origin
        self.id, self.prompts, self.params = id, [prompt], params
        self._service, self._metrics, self._search = service, service.metrics, search
        self._record = service.observer.begin(service.model_name, origin, id, params)
        # the engine's part: one token, and what else could have come, of the edited logits. The model's own defaults
        # may hold refinements, which a search has no use for.
        one: dict[str, Any] = {"n": 1, "temperature": 0.0, "max_tokens": 1, "min_tokens": 0, "ignore_eos": True}
        one |= {"logprobs": search.candidates, "logprobs_mode": "processed"}
        self._asked = msgspec.structs.replace(params, **(REFINED | one))
        self.thoughts: list[ReasoningTokens] | None = None  # per choice, where the endpoint counts them
        self._streams: list[AsyncStream] = []
        self._failure: TailraceError | None = None
        self._cut: str | None = None
        self._aborted = False
        self._drawn = 0  # tokens of all beams, including dropped beams

    @property
    def width(self) -> int:
        """How many beams run at once, at most."""
        return self._search.width

    def describe_wait(self) -> str:
        """See Service.describe_wait."""
        return self._service.describe_wait()

    @property
    def work(self) -> int:
        """Tokens that were computed: the prompt, and those of all beams."""
        return len(self.prompts[0]) + self._drawn

    @property
    def name(self) -> str:
        """What the client calls the request; the answer's id where it has no name."""
        return self._record.request_id

    @property
    def user(self) -> str:
        """The id of the user who asked."""
        return self._origin.user

    @property
    def timings(self) -> Timings:
        """How long the answer took so far."""
        return self._record.measure_timings(self.usage)

    @property
    def usage(self) -> Usage:
        """Tokens of the prompt, and of the best beams so far."""
        prompt, completion = len(self.prompts[0]), sum(len(beam.tokens) for beam in self._best)
        details = details_of(0, 0, self.thoughts)
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(), details)

    def named_logprobs(self, p: int) -> None:
        """None: a beam search does not take prompt_logprob_token_ids."""

    def prompt_logprobs(self, p: int) -> None:
        """None: a beam search does not take prompt_logprobs."""

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Return the result of work on a delta. size: the characters that the work's cost is proportional to."""
        return await self._service.work_queue.run_unwatched(self.user, work, size)

    @property
    def _best(self) -> list[Beam]:
        return self._search.select_best(self.params.n)

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """(choice, delta): the best beams, best first; of each its whole text and then its end.

        Raises:
            TailraceError: the engine refused or failed, or `fail` was called. Everything of the request has ended by
                then.
        """
        with self._service.track_request(self, self._record):
            await self._run_search()
            for place, beam in enumerate(self._best):
                self._metrics.finished.labels(beam.reason).inc()
                self._record.finished(place, beam.reason)
            for place, beam in enumerate(self._best):
                work = partial(self._deltas_of, beam)
                for delta in await self.run(work, len(beam.tokens)):
                    yield place, delta

    def cut(self, cause: str) -> None:
        """End the search: running beams are finished as they are, with the finish reason "abort". Idempotent."""
        if not self._search.done and self._cut is None:
            self._cut = cause
            self._end_request(cause)

    def end_thoughts(self) -> bool:
        """Return False: a thought of a beam ends only where the model ends it."""
        return False

    def abort(self, cause: str) -> None:
        """End the search; no beam is returned. Idempotent."""
        if not self._search.done and not self._aborted:
            self._aborted = True
            self._end_request(cause)

    def fail(self, error: TailraceError, cause: str) -> None:
        """End the search; `deltas` then raises the error."""
        self._failure = error
        if not self._search.done:
            self._record.record_interruption(cause, error)
        self.abort(cause)

    def _end_request(self, cause: str) -> None:
        self._record.record_interruption(cause)
        self._metrics.aborted.labels(cause).inc()
        for stream in self._streams:
            stream.abort(cause)
        self._streams.clear()

    async def _run_search(self) -> None:
        """Feed the search until it is done, or cut."""
        search = self._search
        while not search.done:
            entries = await asyncio.gather(*(self._expand_beam(beam) for beam in search.running))
            if self._aborted:
                raise self._failure or asyncio.CancelledError
            if self._cut is not None:
                search.cut()
                return
            whole = [entry for entry in entries if entry is not None]
            if len(whole) < len(entries):
                raise EngineError("the engine's stream ended without a token")
            self._record.first_token()
            self._drawn += len(whole)
            search.step([list(zip(e.top_ids, e.top_logprobs, strict=True)) for e in whole])

    async def _expand_beam(self, beam: Beam) -> TokenLogprobs | None:
        """The likeliest tokens that could follow a beam; None where the stream ended before they came."""
        if self._aborted or self._cut is not None:
            return None
        stream = self._service.submit(self._record, [*self.prompts[0], *beam.tokens], self._asked)
        self._streams.append(stream)
        found: TokenLogprobs | None = None
        async with stream:
            async for events in stream:
                for event in events:
                    if isinstance(event, Failed):
                        raise error_handlers.of_failed(event)
                    if isinstance(event, Tokens) and event.logprobs:
                        found = event.logprobs[0]
        with contextlib.suppress(ValueError):
            self._streams.remove(stream)
        return found

    def _deltas_of(self, beam: Beam) -> tuple[Delta, Delta]:
        """The beam's text, and its end."""
        service, cause = self._service, self._cut if beam.reason == "abort" else None
        text = TextStream(service.tokenizer, self.params, service.client.model.eos_token_ids, self.prompts[0])
        return text.feed(beam.tokens), text.flush(beam.reason, cause=cause)
