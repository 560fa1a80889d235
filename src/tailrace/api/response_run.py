"""A response while it is generated: its events, and what is stored of it. Knows no HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial

import msgspec

from tailrace.api.error_handlers import make_error_body
from tailrace.api.explanations import encode_records, size_of
from tailrace.api.generation import Generation
from tailrace.api.response_events import FULL, ResponseEvents
from tailrace.api.response_logprobs import ScoredSegments
from tailrace.api.response_saver import ResponseSaver
from tailrace.api.schema.responses import Event, InputDetails, OutputDetails, ResponseUsage
from tailrace.api.tool_kinds import Offered
from tailrace.errors import TailraceError
from tailrace.text.output import Delta


class ResponseRun:
    """Iterate `events` once.

    Args:
        offered: see FlatTools. seal: encrypts a thought; None: thoughts are not encrypted. extend: called when the
            response has ended well, before its last event: adds it to its conversation.
    """

    def __init__(
        self,
        generation: Generation,
        saver: ResponseSaver,
        segments: ScoredSegments,
        offered: Mapping[str, Offered],
        seal: Callable[[str], str] | None = None,
        extend: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.generation, self.saver, self.response = generation, saver, saver.response
        self._segments, self._extend = segments, extend
        self._writer = ResponseEvents(self.response, saver.note, offered, seal)
        self._ids: list[int] = []

    async def events(self) -> AsyncGenerator[Event, None]:
        """The response as it comes. In the background its first events are those of a response that waits.

        Raises:
            TailraceError: it failed before its first event. Later it ends with an event that says so.
        """
        response, begun = self.response, False
        try:
            if response.background:
                begun, response.status = True, "queued"
                self.saver.begin()
                for event in self._writer.queue():
                    yield event
            async with aclosing(self.generation.deltas()) as deltas:
                async for _, delta in deltas:
                    if not begun or response.status == "queued":
                        begun, response.status = True, "in_progress"
                        self.saver.begin()
                        for event in self._writer.begin():
                            yield event
                    async with aclosing(self._add_delta(delta)) as events:
                        async for event in events:
                            yield event
        except TailraceError as error:
            if not begun:
                raise
            for event in await self._fail(error):
                yield event
        finally:
            if begun and response.status in ("queued", "in_progress"):  # the client left
                list(self._writer.end("abort", "cancelled", self._usage))
                self.saver.end()

    async def _add_delta(self, delta: Delta) -> AsyncGenerator[Event, None]:
        generation, segments = self.generation, self._segments
        self._ids += delta.token_ids
        for counter in generation.thoughts or ():
            counter.add(delta.offsets)
        found: list[msgspec.Raw] = []
        if delta.explanations:
            found = await generation.run(partial(encode_records, segments.labels.text, delta), size_of(delta))
        for segment, reports in segments.feed(delta, found):
            for event in self._writer.add(segment, reports):
                yield event
        if self._writer.full:
            generation.cut(FULL)
        if delta.finish_reason is not None:
            whole = not segments.splitter.cut_call
            final = list(self._writer.end(delta.finish_reason, delta.stop_reason, self._usage, whole))
            if self._extend is not None and self.response.status in ("completed", "incomplete"):
                await self._extend()
            await self.saver.finish(generation.origin_of(0, self._ids))
            for event in final:
                yield event

    async def _fail(self, error: TailraceError) -> list[Event]:
        self.response.error, self.response.usage = make_error_body(error).error, self._usage
        final = list(self._writer.fail_response())
        await self.saver.finish()
        return final

    @property
    def _usage(self) -> ResponseUsage:
        """The usage so far, under the names of this endpoint."""
        usage = self.generation.usage
        details = InputDetails(usage.prompt_tokens_details.cached_tokens)
        thoughts = OutputDetails(usage.reasoning_tokens)
        return ResponseUsage(usage.prompt_tokens, details, usage.completion_tokens, thoughts, usage.total_tokens)
