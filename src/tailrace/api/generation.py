"""A request while its output is generated: submits the request, turns tokens into text, counts, and ends in every case.

A request has one or more prompts with n sequences each; choice p·n + i is sequence i of prompt p. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tailrace.api import error_handlers
from tailrace.api.merge_iterators import merge_iterators
from tailrace.api.prompt_progress import ProgressCounter
from tailrace.api.prompt_scores import PromptScores
from tailrace.api.request_record import UNKNOWN, RequestOrigin, details_of
from tailrace.api.schema.common import PromptTokensDetails, Timings, Usage
from tailrace.api.stored import OutputOrigin
from tailrace.api.token_clock import TokenClock
from tailrace.api.work_queue import SLICE_S
from tailrace.base.logprobs import TokenLogprobs
from tailrace.errors import EngineError, TailraceError
from tailrace.params import SamplingParams
from tailrace.text.output import Delta, TextStream
from tailrace.text.splitter import ReasoningTokens
from tailrace.wire.messages import Failed, Finished, PromptLogprobs, PromptProgress, SequenceEvent, Tokens

if TYPE_CHECKING:
    from tailrace.api.service import Service
    from tailrace.wire.async_stream import AsyncStream


T = TypeVar("T")

WHOLE_TOKENS, WHOLE_S = 16, 0.1  # of a whole answer that are read at once
SLOW_AFTER_S = 1.0  # a client that takes longer to read one piece of a stream is slow


class Generation:
    """Iterate `deltas` once. `abort`, `fail` and `cut` may be called at any time.

    Args:
        origin: how the request is treated and recorded. grammar_field: the client's name of the grammar.
    """

    def __init__(
        self,
        service: Service,
        id: str,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        origin: RequestOrigin = UNKNOWN,
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
        self._predicted: dict[int, int] = {}  # of each choice, how many predicted tokens it has
        self._keys: dict[int, int] = {}  # of each choice's noise
        self._scores = [PromptScores(params, len(prompt)) for prompt in prompts]
        self.progress = ProgressCounter([*map(len, prompts)])
        self._open = 0
        self._failure: TailraceError | None = None
        self._cut: str | None = None
        self._aborted = False
        self._reading_since_s: float | None = None  # when the last delta was given to the reader, who has not come back
        self._record = service.observer.begin(service.model_name, origin, id, params)
        self.thoughts: list[ReasoningTokens] | None = None  # per choice, where the endpoint counts them

    @property
    def name(self) -> str:
        """The client's name of the request, or the answer's id if the client gave no name."""
        return self._record.request_id

    @property
    def user(self) -> str:
        """The id of the user who asked."""
        return self._origin.user

    def describe_wait(self) -> str:
        """See Service.describe_wait."""
        return self._service.describe_wait()

    @property
    def work(self) -> int:
        """Tokens that were computed: prompts and outputs."""
        return self.usage.total_tokens

    @property
    def timings(self) -> Timings:
        """How long the answer took so far."""
        return self._record.measure_timings(self.usage)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        prompt = sum(map(len, self.prompts))
        completion = sum(text.num_tokens for text in self._texts)
        accepted, total = self._record.accepted, self._record.drafted
        if self.params.prediction:
            accepted, total = sum(self._predicted.values()), len(self.params.prediction) * len(self._texts)
        # a stop that only the front end finds also cuts accepted tokens
        details = details_of(min(accepted, completion), total, self.thoughts)
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(sum(self._cached)), details)

    def origin_of(self, choice: int, output: list[int]) -> OutputOrigin | None:
        """Return the origin of a choice's output; None if the choice has no token yet."""
        if (key := self._keys.get(choice)) is None:
            return None
        prompt = self.prompts[choice // self.params.n]
        return OutputOrigin(self._service.model_name, prompt, self.params, key, output, self._origin.cache_salt)

    def cached_tokens(self, p: int) -> int:
        """Return the number of tokens of prompt p that came from the prefix cache."""
        return self._cached[p]

    def prompt_logprobs(self, p: int) -> list[TokenLogprobs] | None:
        """See PromptScores.entries, of prompt p; from its first delta on."""
        return self._scores[p].entries

    def named_logprobs(self, p: int) -> list[list[float]] | None:
        """See PromptScores.named."""
        return self._scores[p].named

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """(choice, its new text and tokens) as they come; the last delta of each choice has its finish reason.

        Raises:
            TailraceError: a sequence failed, or `fail` was called. Everything of the request has ended by then.
        """
        try:
            with self._service.track_request(self, self._record):
                await self._submit_all()
                sources = [self._of_prompt(p) for p in range(len(self.prompts))]
                async with contextlib.aclosing(merge_iterators(sources) if len(sources) > 1 else sources[0]) as merged:
                    async for choice, delta in merged:
                        self._reading_since_s = time.perf_counter()
                        yield choice, delta
                        self._reading_since_s = None
        finally:
            # they refer to this object (see _on_backlog): without this only a collection would free them
            self._streams.clear()

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Return the result of work on a delta. size: the characters that the work's cost is proportional to. The
        client does not count as slow while the work runs."""
        self._reading_since_s = None
        try:
            return await self._service.work_queue.run_unwatched(self.user, work, size)
        finally:
            self._reading_since_s = time.perf_counter()

    def cut(self, cause: str) -> None:
        """End the open sequences with what has arrived of them: finish reason "abort", stop reason the cause.
        Idempotent."""
        if self._open and self._cut is None:
            self._cut = cause
            self._record.record_interruption(cause)
            self._metrics.aborted.labels(cause).inc()
            for stream in self._streams:
                stream.abort(cause, keep=True)

    def end_thoughts(self) -> bool:
        """Close the open thoughts; the answers follow. Return False if the engine does not watch the request's
        thoughts."""
        if self.params.thinking is None:
            return False
        for stream in self._streams:
            stream.end_thoughts()
        return True

    def abort(self, cause: str) -> None:
        """End the open sequences; nothing more comes of them. Idempotent."""
        if self._open:
            self._open, self._aborted = 0, True
            self._record.record_interruption(cause)
            self._metrics.aborted.labels(cause).inc()
            for stream in self._streams:
                stream.abort(cause)

    def fail(self, error: TailraceError, cause: str) -> None:
        """End the open sequences; `deltas` then raises the error."""
        self._failure = error
        if self._open:
            self._record.record_interruption(cause, error)
        self.abort(cause)

    def _choose_interval(self) -> tuple[int, float]:
        """Tokens and seconds of one event: the request's, or the server's. Tokens of a whole answer are read some at a
        time, unless a stop may end in each."""
        if not self._origin.streamed:
            return (1, 0.0) if self.params.stop or self.params.stop_regex else (WHOLE_TOKENS, WHOLE_S)
        asked, config = self._origin, self._service.config
        tokens = config.stream_interval if asked.interval is None else asked.interval
        return tokens, (config.stream_interval_ms if asked.interval_ms is None else asked.interval_ms) / 1e3

    async def _submit_all(self) -> None:
        """Submit every prompt to the engine. Other requests get the event loop in between."""
        service, n = self._service, self.params.n
        eos = service.client.model.eos_token_ids
        until_s = time.perf_counter() + SLICE_S
        for prompt in self.prompts:
            if time.perf_counter() > until_s:
                await asyncio.sleep(0)
                until_s = time.perf_counter() + SLICE_S
            if self._aborted:
                raise self._failure or asyncio.CancelledError
            stream = self._submit_prompt(prompt)
            stream.set_limit(service.config.stream_buffer_kib << 10, self._on_backlog)
            stream.set_interval(*self._choose_interval())
            self._streams.append(stream)
            self._texts += [TextStream(service.tokenizer, self.params, eos, prompt) for _ in range(n)]
            self._open += n
            if self._cut is not None:
                stream.abort(self._cut, keep=True)

    def _submit_prompt(self, prompt: list[int]) -> AsyncStream:
        return self._service.submit(self._record, prompt, self.params)

    def _on_backlog(self) -> None:
        """Called when the unread buffer exceeds its limit. If the client has been slow for a second, the request
        ends."""
        since_s = self._reading_since_s
        slow = since_s is not None and time.perf_counter() - since_s > SLOW_AFTER_S
        if slow and self._service.config.slow_readers == "cut":
            self.cut("slow reader")

    async def _of_prompt(self, p: int) -> AsyncGenerator[tuple[int, Delta], None]:
        n, stream = self.params.n, self._streams[p]
        open_ = set(range(n))
        clock = TokenClock(self._service, self._arrival_s, self._record)
        async with stream:
            while events := await stream.next():
                for event in self._filter_events(p, events):
                    if isinstance(event, Tokens):
                        self._cached[p] = max(self._cached[p], event.cached_tokens)
                        clock.observe_queue_time(event.queued_s)
                        if event.key is not None:
                            self._keys[p * n + event.index] = event.key
                    if isinstance(event, (Tokens, Finished)):
                        self._record.count_drafts(event.drafts)
                        self._predicted[p * n + event.index] = event.num_predicted
                    if event.index not in open_:  # the text ended before the engine knew
                        continue
                    delta = self._make_delta(p, event, clock)
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
            if self._failure is None and self._aborted:  # nobody waits for it, and the reader is being cancelled
                raise asyncio.CancelledError
            raise self._failure or EngineError("the engine's stream ended before its sequences did")

    def _filter_events(self, p: int, events: list[SequenceEvent]) -> list[SequenceEvent]:
        """Store the logprobs of the prompt, and its progress. Return the other events."""
        if not self.params.scores_prompt and not self._origin.reports_progress:
            return events
        for event in events:
            if isinstance(event, PromptLogprobs):
                self._scores[p].keep(event)
            elif isinstance(event, PromptProgress):
                self.progress.update(p, event)
        return [event for event in events if not isinstance(event, (PromptLogprobs, PromptProgress))]

    def _make_delta(self, p: int, event: SequenceEvent, clock: TokenClock) -> Delta:
        text = self._texts[p * self.params.n + event.index]
        match event:
            case Tokens():
                clock.observe_tokens(event.index, len(event.token_ids))
                return text.feed(event.token_ids, event.logprobs, event.explanations, event.survivors)
            case Finished():
                return text.flush(event.reason, event.stop_token_id, event.cause)
            case Failed():
                raise error_handlers.of_failed(event, self._grammar_field)
            case _:
                raise AssertionError("_filter_events has kept the others")
