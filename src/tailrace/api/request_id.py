"""The name of a request: the client's own, from the body or the x-request-id header, else a fresh one; the answer's
headers repeat it. The name in the body is for who reads the body (received.py)."""

from __future__ import annotations

from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.api.anthropic_errors import is_anthropic

REQUEST_ID = "x-request-id"
ANTHROPIC_ID = "request-id"  # where Anthropic's clients look for it
MAX_REQUEST_ID = 128  # characters


class RequestIdMiddleware:
    """Adds the request's id to the headers of answers without an id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if REQUEST_ID not in headers:
                    write_id(headers, scope, id_of(scope))
            await send(message)

        await self._app(scope, receive, send_with_id)


def id_of(scope: Scope) -> str:
    """Return the client's id if its header is a short printable word, else a fresh one."""
    value = Headers(scope=scope).get(REQUEST_ID)
    if value and len(value) <= MAX_REQUEST_ID and all("!" <= c <= "~" for c in value):
        return value
    return uuid4().hex


def write_id(headers: MutableHeaders, scope: Scope, id: str) -> None:
    """Write the name of a request into its answer's headers."""
    headers[REQUEST_ID] = id
    if is_anthropic(scope):
        headers[ANTHROPIC_ID] = id
