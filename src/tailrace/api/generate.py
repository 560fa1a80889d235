"""One request to the API while it is generated: submits it, turns tokens into text, ends it in every case, counts it.

A request has one or more prompts with n sequences each; choice p·n + i is sequence i of prompt p. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import UNSET

from tailrace.api import error_handlers
from tailrace.api.access_log import UNKNOWN, Origin, Record
from tailrace.api.merge import merge
from tailrace.api.schema.common import CompletionTokensDetails, PromptTokensDetails, Usage
from tailrace.api.turns import SLICE_S
from tailrace.errors import EngineError, TailraceError
from tailrace.params import SamplingParams
from tailrace.text.output import Delta, TextStream
from tailrace.wire.messages import Failed, Finished, PromptLogprobs, SequenceEvent, TokenLogprobs, Tokens

if TYPE_CHECKING:
    from tailrace.api.service import Service
    from tailrace.wire.async_client import AsyncStream


T = TypeVar("T")

SLOW_AFTER_S = 1.0  # a client that takes longer for a piece of a stream keeps it waiting


class Generation:
    """Iterate `deltas` once. `abort`, `fail` and `cut` may be called at any time, by anybody.

    Args:
        origin: how it is to be treated, and for the record of it. grammar_field: what the client calls the grammar.
    """

    def __init__(
        self,
        service: Service,
        id: str,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        origin: Origin = UNKNOWN,
        grammar_field: str = "grammar",
    ) -> None:
        self._grammar_field = grammar_field
        self.id, self.prompts, self.params = id, prompts, params
        self._service, self._metrics = service, service.metrics
        self._origin = origin
        self._arrival_s = time.perf_counter()
        self._streams: list[AsyncStream] = []
        self._texts: list[TextStream] = []
        self._cached = [0] * len(prompts)
        self._drafted = self._stood = 0
        self._scores: list[list[TokenLogprobs]] = [[] for _ in prompts]  # logprobs of prompts
        self._open = 0
        self._failure: TailraceError | None = None
        self._cut: str | None = None
        self._aborted = False
        self._handed_s: float | None = None  # since when whoever reads the deltas is busy with one
        self._record = service.observer.begin(service.model_name, origin, id, self.name, params)

    @property
    def name(self) -> str:
        """What the client calls the request; the id where it has no name."""
        return self._origin.request_id or self.id

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        prompt = sum(map(len, self.prompts))
        completion = sum(text.num_tokens for text in self._texts)
        stood = min(self._stood, completion)  # a stop that only we could find cuts what the engine had let stand
        details = UNSET if not self._drafted else CompletionTokensDetails(stood, self._drafted - stood)
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(sum(self._cached)), details)

    def prompt_logprobs(self, p: int) -> list[TokenLogprobs] | None:
        """Of all tokens of prompt p but the first, once its first delta is there; None if they were not asked for, or cut off."""
        complete = self.params.prompt_logprobs is not None and len(self._scores[p]) == len(self.prompts[p]) - 1
        return self._scores[p] if complete else None

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """(choice, what is new of it) as it comes; the last of each choice has its finish reason.

        Raises:
            TailraceError: a sequence failed, or `fail` was called. Everything of the request has ended by then.
        """
        service, n = self._service, self.params.n
        service.supervisor.check()
        eos = service.client.model.eos_token_ids
        service.live.add(self)
        timer = service.limited(self._origin.deadline_s, self.cut)
        try:
            until_s = time.perf_counter() + SLICE_S
            for prompt in self.prompts:
                if time.perf_counter() > until_s:
                    await asyncio.sleep(0)
                    until_s = time.perf_counter() + SLICE_S
                if self._aborted:
                    raise self._failure or asyncio.CancelledError
                stream = service.client.submit(
                    prompt, self.params, id=self.id, priority=self._origin.priority, adapter=service.adapter
                )
                stream.bound(service.config.stream_buffer_kib << 10, self._backlog)
                if self._origin.streamed:
                    stream.space(*self._interval())
                self._streams.append(stream)
                self._texts += [TextStream(service.tokenizer, self.params, eos, prompt) for _ in range(n)]
                self._open += n
                if self._cut is not None:
                    stream.abort(self._cut, keep=True)
            sources = [self._of_prompt(p) for p in range(len(self.prompts))]
            async with contextlib.aclosing(merge(sources) if len(sources) > 1 else sources[0]) as merged:
                async for choice, delta in merged:
                    self._handed_s = time.perf_counter()
                    yield choice, delta
                    self._handed_s = None
            self._metrics.e2e_latency.observe(time.perf_counter() - self._arrival_s)
        except TailraceError as error:
            self._metrics.failed.labels(error.code).inc()
            self._record.interrupted(None, error)
            self.abort("failed")
            raise
        except Exception as error:  # a bug of ours
            self._record.interrupted(None, error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self.abort("closed")
            self._streams.clear()  # they hold us, to tell of a backlog: without this a collection would have to find them
            service.live.discard(self)
            self._record.end(self.usage)

    async def answer(self, work: Callable[[], T], size: int) -> T:
        """The result of work on what was handed out, whose cost goes with so many characters. Its time is none of the client's."""
        self._handed_s = None
        try:
            return await self._service.turns.answer(work, size)
        finally:
            self._handed_s = time.perf_counter()

    def cut(self, cause: str) -> None:
        """End whatever is still open as it is, with all that has arrived: its finish reason is "abort", its stop reason the cause.
        Idempotent."""
        if self._open and self._cut is None:
            self._cut = cause
            self._record.interrupted(cause)
            self._metrics.aborted.labels(cause).inc()
            for stream in self._streams:
                stream.abort(cause, keep=True)

    def abort(self, cause: str) -> None:
        """End whatever is still open; nothing more comes. Idempotent."""
        if self._open:
            self._open, self._aborted = 0, True
            self._record.interrupted(cause)
            self._metrics.aborted.labels(cause).inc()
            for stream in self._streams:
                stream.abort(cause)

    def fail(self, error: TailraceError, cause: str) -> None:
        """End whatever is still open; `deltas` then raises the error."""
        self._failure = error
        if self._open:
            self._record.interrupted(cause, error)
        self.abort(cause)

    def _interval(self) -> tuple[int, float]:
        """Tokens and seconds of one event: the request's, or the server's."""
        asked, config = self._origin, self._service.config
        tokens = config.stream_interval if asked.interval is None else asked.interval
        return tokens, (config.stream_interval_ms if asked.interval_ms is None else asked.interval_ms) / 1e3

    def _backlog(self) -> None:
        """More waits to be read than may. If it waits for us, we hurry; if for the client, it is cut."""
        slow = self._handed_s is not None and time.perf_counter() - self._handed_s > SLOW_AFTER_S
        if slow and self._service.config.slow_readers == "cut":
            self.cut("slow reader")

    async def _of_prompt(self, p: int) -> AsyncGenerator[tuple[int, Delta], None]:
        n, stream = self.params.n, self._streams[p]
        open_ = set(range(n))
        clock = TokenClock(self._service, self._arrival_s, self._record)
        async with stream:
            while events := await stream.next():
                for event in self._without_scores(p, events):
                    if isinstance(event, Tokens):
                        self._cached[p] = max(self._cached[p], event.cached_tokens)
                        clock.admitted(event.queued_s)
                    if isinstance(event, (Tokens, Finished)):
                        self._drafted += sum(event.drafts[::2])
                        self._stood += sum(event.drafts[1::2])
                    if event.index not in open_:  # its text ended before the engine knew
                        continue
                    delta = self._delta(p, event, clock)
                    if delta.finish_reason is not None:
                        self._metrics.finished.labels(delta.finish_reason).inc()
                        self._record.finished(p * n + event.index, delta.finish_reason)
                        open_.discard(event.index)
                        self._open -= 1
                        if isinstance(event, Tokens) and stream.abort_sequence(
                            event.index
                        ):  # a stop that the engine did not find
                            self._metrics.aborted.labels("stop string").inc()
                    yield p * n + event.index, delta
        if self._cut is not None and self._failure is None:
            for index in sorted(open_):
                text = self._texts[p * n + index]
                self._metrics.finished.labels("abort").inc()
                self._record.finished(p * n + index, "abort")
                self._open -= 1
                yield p * n + index, text.flush("abort", cause=self._cut)
        elif open_:
            if self._failure is None and self._aborted:  # nobody waits for it; whoever aborted cancels the work
                raise asyncio.CancelledError
            raise self._failure or EngineError("the engine's stream ended before its sequences did")

    def _without_scores(self, p: int, events: list[SequenceEvent]) -> list[SequenceEvent]:
        """Keeps the logprobs of the prompt; returns the other events."""
        if self.params.prompt_logprobs is None:
            return events
        for event in events:
            if isinstance(event, PromptLogprobs) and event.start == len(self._scores[p]) + 1:
                self._scores[p] += event.entries
        return [event for event in events if not isinstance(event, PromptLogprobs)]

    def _delta(self, p: int, event: SequenceEvent, clock: TokenClock) -> Delta:
        text = self._texts[p * self.params.n + event.index]
        match event:
            case Tokens():
                clock.tick(event.index, len(event.token_ids))
                return text.feed(event.token_ids, event.logprobs)
            case Finished():
                return text.flush(event.reason, event.stop_token_id, event.cause)
            case Failed():
                raise error_handlers.of_failed(event, self._grammar_field)
            case PromptLogprobs():
                raise AssertionError("taken out before")


class TokenClock:
    """Time to first token and inter-token latency of one prompt's sequences."""

    def __init__(self, service: Service, arrival_s: float, record: Record) -> None:
        self._metrics = service.metrics
        self._arrival_s, self._record = arrival_s, record
        self._last_s: dict[int, float] = {}  # per sequence

    def admitted(self, queued_s: float) -> None:
        """The prompt waited so long for a slot; counted with its first token."""
        if not self._last_s:
            self._metrics.queue_time.observe(queued_s)

    def tick(self, index: int, num_tokens: int) -> None:
        """So many tokens of sequence `index` have come just now."""
        now_s = time.perf_counter()
        if not self._last_s:
            self._metrics.time_to_first_token.observe(now_s - self._arrival_s)
            self._record.first_token()
        last_s = self._last_s.get(index)
        if last_s is not None:
            self._metrics.inter_token_latency.observe((now_s - last_s) / num_tokens, num_tokens)
        self._last_s[index] = now_s
