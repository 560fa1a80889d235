"""GET /health: 200 while the engine can serve, 503 while it starts and once it is dead."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tailrace.api.service import Service


async def health(request: Request) -> Response:
    """See above."""
    client = Service.of(request).client
    if client.error is None and client.ready:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "starting" if client.error is None else str(client.error)}, 503)
