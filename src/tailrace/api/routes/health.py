"""GET /health: 200 while requests are accepted, 503 while the engine starts, after it died, and during a shutdown."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.respond import json_answer
from tailrace.api.service import service_of


class Health(msgspec.Struct, frozen=True):
    """`status`: starting, ready, dead or draining. `error`: why the engine died, if it did."""

    status: str
    error: str | None


async def health(request: Request) -> Response:
    """Whether requests are accepted."""
    supervisor = service_of(request).supervisor
    error = None if supervisor.error is None else str(supervisor.error)
    return json_answer(Health(supervisor.state, error), 200 if supervisor.state == "ready" else 503)
