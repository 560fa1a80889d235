"""DELETE /v1/requests/{id}: end a running request, keeping what it has said."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import front_of
from tailrace.api.respond import json_answer
from tailrace.api.schema.requests import Cancelled
from tailrace.api.worker_queries import everywhere
from tailrace.errors import RequestNotFoundError


async def cancel_request(request: Request) -> Response:
    """By the id of its answer ("chatcmpl-…") or by its x-request-id; of several with one name, all."""
    name = request.path_params["id"]
    found = await everywhere(front_of(request), "cut", name)
    if not found:
        raise RequestNotFoundError(f"no request {name[:200]!r} is running", "id")
    return json_answer(Cancelled(found[0].decode()))
