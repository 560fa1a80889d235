"""The name of a request: the client's own, from the body or the x-request-id header, else a fresh one; the answer's
headers repeat it."""

from __future__ import annotations

from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.api.anthropic_errors import is_anthropic
from tailrace.api.schema.common import GenerateRequest

REQUEST_ID = "x-request-id"
ANTHROPIC_ID = "request-id"  # where Anthropic's clients look for it
MAX_REQUEST_ID = 128  # characters


class RequestIdMiddleware:
    """Names each request before anything else happens to it, and writes the name into the answer's headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        state["request_id"] = id_of_header(Headers(scope=scope).get(REQUEST_ID))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = state["request_id"]
                if is_anthropic(scope):
                    headers[ANTHROPIC_ID] = state["request_id"]
            await send(message)

        await self._app(scope, receive, send_with_id)


def id_of_header(value: str | None) -> str:
    """The client's id if it is a short printable word, else a fresh one."""
    if value and len(value) <= MAX_REQUEST_ID and all("!" <= c <= "~" for c in value):
        return value
    return uuid4().hex


def request_id(request: Request, ask: GenerateRequest) -> str:
    """The body's id, the header's, or the fresh one. The answer's header will say the same."""
    if ask.request_id is not None:
        request.state.request_id = ask.request_id
    return request.state.request_id
