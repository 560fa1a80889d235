"""One HTTP request's generation: prompts → the engine → text deltas per choice, ended and cleaned up in every case.

A choice's index is prompt · n + sequence. Leaving the iteration early (client gone, error, deadline) aborts what still runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from tailrace.api.problems import from_failed
from tailrace.api.schema.common import PromptTokensDetails, Usage
from tailrace.api.service import Service
from tailrace.params import SamplingParams
from tailrace.text.stream import Delta, TextStream
from tailrace.wire.messages import Failed, Finished, SequenceEvent, Tokens

Choices = list[tuple[int, Delta]]


class Generation:
    """Iterate `deltas`; afterwards `usage` counts."""

    def __init__(
        self, service: Service, prompts: list[list[int]], params: SamplingParams, id: str, priority: int = 0
    ) -> None:
        self.service, self.prompts, self.params, self.id, self.priority = service, prompts, params, id, priority
        eos = service.model.eos_token_ids
        self.texts = [TextStream(service.tokenizer, params, eos) for _ in range(len(prompts) * params.n)]
        self.cached = 0
        self.started = time.perf_counter()
        self.last: list[float] = [0.0] * len(self.texts)

    async def deltas(self) -> AsyncIterator[Choices]:
        """What is new, as it comes; ends when every choice has.

        Raises:
            TailraceError: a sequence failed; the others are aborted.
        """
        client = self.service.client
        streams = [
            client.submit(prompt, self.params, id=f"{self.id}/{i}", priority=self.priority)
            for i, prompt in enumerate(self.prompts)
        ]
        try:
            async for place, events in merged(streams):
                choices = [self._digest(place, streams[place], event) for event in events]
                fresh = [choice for choice in choices if choice is not None]
                if fresh:
                    yield fresh
            self.service.metrics.whole.observe(time.perf_counter() - self.started)
            self.service.metrics.prompt_tokens.inc(sum(map(len, self.prompts)))
        finally:
            if not all(text.finished for text in self.texts):
                self.service.metrics.aborted.labels("client").inc()
            for stream in streams:
                stream.abort("generation left")

    @property
    def usage(self) -> Usage:
        """Counts so far; each prompt counts once, whatever n."""
        prompt = sum(map(len, self.prompts))
        completion = sum(text.num_tokens for text in self.texts)
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(self.cached))

    def _digest(self, place: int, stream: Any, event: SequenceEvent) -> tuple[int, Delta] | None:
        """One event of one sequence → what it adds to its choice, if anything."""
        index = place * self.params.n + event.index
        text = self.texts[index]
        match event:
            case Failed():
                raise from_failed(event)
            case Tokens():
                self._time(index, len(event.token_ids))
                delta = text.feed(event.token_ids, event.logprobs)
                if delta.finish_reason is not None:  # a stop string: the engine does not know yet
                    stream.abort_sequence(event.index)
            case Finished():
                if event.index == 0:
                    self.cached += event.cached_tokens
                delta = text.flush(event.reason, event.stop_token_id)
        if delta.finish_reason is not None:
            self.service.metrics.finished.labels(delta.finish_reason).inc()
        return None if delta.empty else (index, delta)

    def _time(self, index: int, count: int) -> None:
        """Latencies, and tokens delivered."""
        now, metrics = time.perf_counter(), self.service.metrics
        if self.last[index]:
            metrics.between.observe((now - self.last[index]) / count)
        else:
            metrics.first_token.observe(now - self.started)
        self.last[index] = now
        metrics.generated_tokens.inc(count)


async def merged(streams: list[Any]) -> AsyncIterator[tuple[int, list[SequenceEvent]]]:
    """Events of several streams as they come, with the stream's place."""
    if len(streams) == 1:
        async for events in streams[0]:
            yield 0, events
        return
    queue: asyncio.Queue[tuple[int, list[SequenceEvent] | None]] = asyncio.Queue()

    async def pump(place: int, stream: Any) -> None:
        async for events in stream:
            queue.put_nowait((place, events))
        queue.put_nowait((place, None))

    tasks = [asyncio.create_task(pump(place, stream)) for place, stream in enumerate(streams)]
    try:
        left = len(streams)
        while left:
            place, events = await queue.get()
            if events is None:
                left -= 1
            else:
                yield place, events
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
