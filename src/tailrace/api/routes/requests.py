"""DELETE /v1/requests/{id}: end a running request, keeping its output so far."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.schema.requests import Cancelled
from tailrace.api.streaming import json_response
from tailrace.api.worker_queries import ask_all
from tailrace.errors import RequestNotFoundError, format_json


async def cancel_request(request: Request) -> Response:
    """End a request of the same user by the id of its answer ("chatcmpl-…") or by its x-request-id. Several of one
    name are all ended.

    Raises:
        RequestNotFoundError: the user runs no request of this name.
    """
    name = request.path_params["id"]
    found = await ask_all(request, "cut", name)
    if not found:
        raise RequestNotFoundError(f"no request {format_json(name, 200)} is running", "id")
    return json_response(Cancelled(found[0].decode()))
