"""What becomes of a response that is stored: GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items and
POST /v1/responses/{id}/cancel."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import front_of
from tailrace.api.item_pages import make_page, read_page_query, read_query_choice, read_query_number
from tailrace.api.kept_items import list_items
from tailrace.api.schema.requests import Cancelled
from tailrace.api.schema.responses import Deleted, ItemList
from tailrace.api.stored import check_response_id, is_last, make_missing_error
from tailrace.api.streaming import EventFormat, Frame, json_response, make_response, named_frame
from tailrace.api.user import user_of
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_all, ask_first, ask_stored, forget_stored
from tailrace.errors import ParameterError

JSON = "application/json"
RUNNING = re.compile(rb'"status":"(in_progress|queued)"')
POLL_S = 0.02  # between two looks at a stream of another front end


async def retrieve_response(request: Request) -> Response:
    """A stored response, also while it is in progress; or its stream, from the event behind `starting_after` on.

    Raises:
        ParameterError: naming the query's parameter. RequestNotFoundError: it is not stored.
    """
    id = request.path_params["id"]
    streamed = read_query_choice(request, "stream", ("false", "true")) == "true"
    after = read_query_number(request, "starting_after", -1, 0, 2**31 - 1)
    if not streamed:
        if after >= 0:
            raise ParameterError("starting_after needs stream to be true", "starting_after")
        return Response(await ask_stored(request, "response", id), media_type=JSON)
    so_far = await frames_from(request, id, 0)
    if so_far is None:
        raise ParameterError("stream: only a response that was created with stream can be streamed again", "stream")
    if after >= 0 and (after >= len(so_far) or is_last(so_far[after])):
        raise ParameterError(f"starting_after: there is no event behind {after} so far", "starting_after")
    return await make_response(request, SecondReader(), replay_events(request, id, after + 1), last_frame, True, FRAMES)


class SecondReader:
    """Who reads a stream a second time: nothing ends with it."""

    def describe_wait(self) -> str:
        """See streaming.Abortable."""
        return ""

    def abort(self, cause: str) -> None:
        """See streaming.Abortable."""


def frame_stored_event(event: msgspec.Struct) -> bytes:
    """An event's bytes."""
    return event.data if isinstance(event, Frame) else named_frame(event)


FRAMES = EventFormat(frame_stored_event, b"")


async def frames_from(request: Request, id: str, number: int) -> list[str] | None:
    """The events so far from a number on; None where the response was not streamed.

    Raises:
        RequestNotFoundError: it is not stored (any more).
    """
    check_response_id(id)
    found = await ask_first(request, "events", f"{number} {id}")
    if found is None:
        raise make_missing_error(id)
    return msgspec.json.decode(found, type=list[str] | None)


async def replay_events(request: Request, id: str, number: int) -> AsyncGenerator[Frame, None]:
    """The events of a stored response from a number on, until its last.

    Raises:
        RequestNotFoundError: it is stored no longer.
    """
    share = front_of(request).responses.share_of(user_of(request.scope))
    while True:
        new = await frames_from(request, id, number) or []
        for text in new:
            yield Frame(text.encode())
        number += len(new)
        if new and is_last(new[-1]):
            return
        await (share.beyond(id, number) if id in share else asyncio.sleep(POLL_S))


async def last_frame(frames: AsyncGenerator[Frame, None]) -> Frame:
    """The last event alone."""
    return [event async for event in frames][-1]


async def list_input_items(request: Request) -> Response:
    """The items that a stored response answers, page by page: `limit`, `order`, `after`.

    Raises:
        ParameterError: naming the query's parameter. RequestNotFoundError: it is not stored.
    """
    front, id, query = front_of(request), request.path_params["id"], read_page_query(request)
    raw = await ask_stored(request, "inputs", id)

    def list_page() -> ItemList:
        return make_page(list_items(msgspec.json.decode(raw), id), query)

    return json_response(await front.work_queue.run(request, list_page, len(raw) // JSON_BYTES))


async def delete_response(request: Request) -> Response:
    """Delete a stored response."""
    id = request.path_params["id"]
    check_response_id(id)
    await forget_stored(request, id)
    return json_response(Deleted(id))


async def cancel_response(request: Request) -> Response:
    """End a response that is in progress; its output so far stays."""
    id = request.path_params["id"]
    found = await ask_all(request, "cut", id) if id.startswith("resp_") else []
    if not found:
        return Response(await ask_stored(request, "response", id), media_type=JSON)
    body = await ask_first(request, "response", id)
    if body is None:  # no token has come yet, or the response is not to be stored
        return json_response(Cancelled(id))
    return Response(RUNNING.sub(b'"status":"cancelled"', body, count=1), media_type=JSON)
