"""A path with a slash at its end names the same endpoint as without. The page has addresses of its own."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class TrailingSlash:
    """ASGI middleware that drops the slash. A redirect would not do: many clients do not follow one for a POST."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        if scope["type"] == "http" and scope["path"].endswith("/") and not scope["path"].startswith("/page"):
            scope = {**scope, "path": scope["path"].rstrip("/") or scope["path"]}
        await self._app(scope, receive, send)
