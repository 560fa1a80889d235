"""Who may call: bearer keys for everything but what operators' tools poll. Knows no endpoint's meaning."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.api import problems
from tailrace.errors import AuthenticationError

OPEN = ("/health", "/metrics", "/openapi.json")  # for load balancers, scrapers and tools, which have no key


class ApiKeys:
    """Lets a request through if its `Authorization: Bearer …` is one of the keys; compared in constant time."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or scope["method"] == "OPTIONS":
            return await self._app(scope, receive, send)
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        matches = [
            hmac.compare_digest(given.strip().encode(), key) for key in self._keys
        ]  # all of them, whatever the first says
        if scheme.lower() == "bearer" and any(matches):
            return await self._app(scope, receive, send)
        error = AuthenticationError(
            "an API key is required: Authorization: Bearer …" if not given else "Incorrect API key provided"
        )
        response = problems.answer(
            error.status, problems.body(error), {"www-authenticate": "Bearer", "connection": "close"}
        )
        await response(scope, receive, send)
