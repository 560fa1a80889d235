"""A request whose body has been read: what `read_request` returns, and what the steps behind it get.

An endpoint that `answers(reader)` decorates gets a `Received`. Its answer, or the error that it raises, goes out under
the client's names of the fields, with the request's name and warnings in the headers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api import foreign_calls, foreign_content
from tailrace.api.body import Body, BodyReader, check_items
from tailrace.api.cache_isolation import check_cache_salt
from tailrace.api.error_handlers import error_response
from tailrace.api.foreign_calls import list_foreign_calls
from tailrace.api.foreign_content import replace_foreign_content
from tailrace.api.foreign_tools import drop_foreign_tools, rename_places, restore_places
from tailrace.api.front_end import FrontEnd, front_of
from tailrace.api.request_id import id_of, write_id
from tailrace.api.request_record import MAX_TRACEPARENT, MAX_TRACESTATE, RequestOrigin
from tailrace.api.response_warnings import list_names, write_warnings
from tailrace.api.schema.common import GenerateRequest
from tailrace.api.service import Service
from tailrace.api.user import user_of
from tailrace.api.user_admission import ADMISSION
from tailrace.errors import ParameterError, RequestError, TailraceError

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

Endpoint = Callable[["Received[R]"], Awaitable[Response]]


class Received(Generic[R]):
    """A request whose body has been read.

    - ask: the body.
    - service: the service of the model that the body names.
    - size: bytes of the body, and of what it refers to.
    - names: field → the client's name for it.
    - request_id: the name of the request. user: the id of the user who sent it.
    - warnings: for the answer's headers.
    - tool_places: where the body has each tool; empty if all are where they were.
    """

    def __init__(self, request: Request, body: Body[R], service: Service) -> None:
        self.request, self.ask, self.service = request, body.ask, service
        self.size, self.names = body.size, body.names.used
        self.request_id, self.user = id_of(request.scope), user_of(request.scope)
        self.warnings: dict[str, None] = {}
        if body.names.unknown:
            self.warn(f"ignored, because no such field is known: {list_names(body.names.unknown)}")
        if kinds := replace_foreign_content(body.ask, service.config.foreign_content):
            self.warn(foreign_content.WARNING.format(", ".join(kinds)))
        policy = service.config.foreign_tools
        if kinds := list_foreign_calls(body.ask, policy):
            self.warn(foreign_calls.WARNING.format(", ".join(kinds)))
        dropped, self.tool_places = drop_foreign_tools(body.ask, policy)
        for warning in dropped:
            self.warn(warning)
        if dropped:
            service.warn_once("tools that cannot be served are dropped; --foreign-tools refuse makes them an error")

    def move_tools(self, places: Sequence[str]) -> None:
        """Note where the body has each of the tools that the endpoint made of the body's tools."""
        if self.tool_places:
            places = [rename_places(place, self.tool_places) for place in places]
        self.tool_places = [*places]

    @property
    def front(self) -> FrontEnd:
        """The front end behind the request."""
        return front_of(self.request)

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Return the result of `work`, done on the work queue; size: see WorkQueue.run."""
        return await self.service.work_queue.run(self.request, work, size)

    async def render(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which renders a chat template; see WorkQueue.render."""
        return await self.service.work_queue.render(self.request, work)

    def warn(self, text: str) -> None:
        """Add a warning to the answer's headers, once. text: ASCII without quotes."""
        self.warnings[text] = None

    def add_bytes(self, raw: bytes, field: str) -> None:
        """Count JSON that the body refers to. It will be parsed and rendered with the body.

        Raises:
            ParameterError: together they are larger than a body may be. RequestError: the JSON has too many items.
        """
        config = self.service.config
        if (size := self.size + len(raw)) > (most := config.max_body_mib << 20):
            raise ParameterError(f"{field}: the whole conversation must have at most {most} bytes, got {size}", field)
        check_items(raw, config.max_body_items)
        self.size = size

    def origin(self, operation: str, ask: GenerateRequest) -> RequestOrigin:
        """Return where the request came in. It is called as `ask` says, if it says so.

        Raises:
            ParameterError: see check_cache_salt.
        """
        check_cache_salt(self.service.isolation, ask.cache_salt or "")
        headers = self.request.headers
        parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
        self.request_id = ask.request_id or self.request_id
        return RequestOrigin(
            operation,
            self.request.scope["path"],
            ask.streamed,
            parent if len(parent) <= MAX_TRACEPARENT else "",
            state if len(state) <= MAX_TRACESTATE else "",
            self.request_id,
            ask.priority or 0,
            ask.deadline_s,
            ask.stream_interval,
            ask.stream_interval_ms,
            self.user,
            ask.cache_salt or "",
            self.request.scope.get(ADMISSION),
            bool(getattr(ask, "return_progress", None)),
        )

    async def answer(self, endpoint: Endpoint[R]) -> Response:
        """Return the endpoint's answer, or the error that it raises as an answer."""
        scope = self.request.scope
        try:
            response = await endpoint(self)
        except TailraceError as error:
            # No variable holds the renamed error: its traceback holds this frame, so only a collection would free both.
            response = error_response(scope, self._rename_fields(error), self.request_id)
        write_id(response.headers, scope, self.request_id)
        write_warnings(response.headers, self.warnings)
        return response

    def _rename_fields(self, error: TailraceError) -> TailraceError:
        """Return the error under the client's names and places."""
        if not isinstance(error, RequestError):
            return error
        error = error.rename_fields(self.names)
        return restore_places(error, self.tool_places) if self.tool_places else error


async def read_request(request: Request, reader: BodyReader[R]) -> Received[R]:
    """Return what the body asks for, and the service of the model that it names.

    Raises:
        TailraceError, HTTPException: see BodyReader.read, FrontEnd.find and Supervisor.check.
    """
    body = await reader.read(request)
    model: str | None = getattr(body.ask, "model", None)
    service = front_of(request).find(model)
    service.supervisor.check()
    return Received(request, body, service)


def answers(reader: BodyReader[R]) -> Callable[[Endpoint[R]], Callable[[Request], Awaitable[Response]]]:
    """Make a function of what the reader reads the endpoint of a request."""

    def decorate_endpoint(endpoint: Endpoint[R]) -> Callable[[Request], Awaitable[Response]]:
        @wraps(endpoint)
        async def read_and_answer(request: Request) -> Response:
            received: Received[Any] = await read_request(request, reader)
            return await received.answer(endpoint)

        return read_and_answer

    return decorate_endpoint
