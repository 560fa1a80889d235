"""The connections of a resumable request: the first one, and those that get the rest of its events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.beam_search import BeamRequest
from tailrace.api.disconnect import unless_disconnected
from tailrace.api.front_end import front_of
from tailrace.api.generation import Generation
from tailrace.api.kept_streams import StreamPart, make_lost_error
from tailrace.api.received import Received
from tailrace.api.streaming import KEPT, PLAIN, EventFormat, EventStream, Frame, Silence
from tailrace.api.user import user_of
from tailrace.api.user_admission import ADMISSION
from tailrace.api.user_line import leave_place
from tailrace.api.worker_queries import ask_stream
from tailrace.errors import ParameterError

POLL_S, MAX_POLL_S = 0.02, 0.16  # between two looks at a stream of another front end


def check_stream_fields(received: Received[Any]) -> None:
    """Refuse fields that a whole answer, or this server, can't have.

    Raises:
        ParameterError: naming the field.
    """
    ask = received.ask
    if ask.resumable and not ask.streamed:
        raise ParameterError("resumable needs stream to be true", "resumable", mentions=["stream"])
    if ask.resumable and not received.service.config.resume_s:
        raise ParameterError("resumable: this server keeps no events (--resume-s 0)", "resumable")


async def answer_resumably(
    received: Received[Any],
    generation: Generation | BeamRequest,
    chunks: AsyncGenerator[msgspec.Struct, None],
    form: EventFormat = PLAIN,
) -> Response:
    """The answer's stream. The request goes on if its client leaves.

    Raises:
        TailraceError: the request failed before anything was sent. ClientDisconnect: the client left before.
    """
    request, front = received.request, received.front
    leave_place(request.scope)
    stream = front.streams.start(received.user, generation, chunks, request.scope.get(ADMISSION), form)
    keep_alive_s = front.config.keep_alive_s
    try:
        with stream.reading(), contextlib.suppress(TimeoutError):
            begun = asyncio.wait_for(stream.begun.wait(), keep_alive_s)
            await unless_disconnected(request.receive, begun, do_nothing)
    finally:
        stream.begun.set()  # from now on an error is an event: the answer has begun, or its client has left
    failure, stream.failure = stream.failure, None
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame
    return make_event_stream(request, generation.id, 0, generation.describe_wait)


def make_event_stream(request: Request, id: str, number: int, describe_wait: Callable[[], str] = str) -> EventStream:
    """The answer with the events behind event `number`. describe_wait: see Silence."""
    events = follow_events(request, id, number)
    first = asyncio.ensure_future(anext(events))
    silence = Silence(front_of(request).config.keep_alive_s, describe_wait=describe_wait)
    return EventStream(first, events, do_nothing, silence, KEPT)


async def follow_events(request: Request, id: str, number: int) -> AsyncGenerator[Frame, None]:
    """The events behind event `number`, until the last one.

    Raises:
        RequestNotFoundError: the events are kept no longer.
    """
    streams, user = front_of(request).streams, user_of(request.scope)
    share, poll_s = streams.store.share_of(user), POLL_S
    with streams.reading(user, id):
        while True:
            part: StreamPart | None = await ask_stream(request, id, number)
            if part is None:
                raise make_lost_error(id)
            for event in part.events:
                yield Frame(event)
            number += len(part.events)
            if part.is_end(number):
                return
            if id in share:
                await share.beyond(id, number)
            else:
                poll_s = POLL_S if part.events else min(2 * poll_s, MAX_POLL_S)
                await asyncio.sleep(poll_s)


def do_nothing() -> None:
    """The client has left: the request goes on."""
