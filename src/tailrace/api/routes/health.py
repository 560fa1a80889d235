"""GET /health: 200 while requests are served, 503 while the engine starts, stands still, after it died, and during a shutdown."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.respond import json_answer
from tailrace.api.service import service_of


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status`: starting, ready, stalled, dead or draining. `error`: why the engine died, if it did. `part`: of the step, in which a
    stalled engine is, and has been for so many `seconds`."""

    status: str
    error: str | None
    part: str | None = None
    seconds: float | None = None


async def health(request: Request) -> Response:
    """Whether requests are accepted."""
    supervisor = service_of(request).supervisor
    condition, stall = supervisor.condition, supervisor.stall
    error = None if supervisor.error is None else str(supervisor.error)
    if condition == "stalled" and stall is not None:
        return json_answer(Health(condition, error, stall.part, round(stall.seconds, 3)), 503)
    return json_answer(Health(condition, error), 200 if condition == "ready" else 503)
