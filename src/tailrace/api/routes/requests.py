"""DELETE /v1/requests/{id}: end a running request, keeping its output so far. POST /v1/chat/completions/{id}/control:
end its thought alone."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.body import BodyReader
from tailrace.api.received import Received, answers
from tailrace.api.schema.requests import Cancelled, Controlled, ControlRequest
from tailrace.api.streaming import json_response
from tailrace.api.worker_queries import ask_all
from tailrace.errors import ParameterError, RequestNotFoundError, format_json

CONTROL = BodyReader(ControlRequest, {})
UNARMED = "the thoughts of this request can't be ended: it was sent without reasoning_control"


async def cancel_request(request: Request) -> Response:
    """End a request of the same user by the id of its answer ("chatcmpl-…") or by its x-request-id. Several of one
    name are all ended.

    Raises:
        RequestNotFoundError: the user runs no request of this name.
    """
    name = request.path_params["id"]
    found = await ask_running(request, "cut", name)
    return json_response(Cancelled(found[0].decode()))


@answers(CONTROL)
async def control_request(received: Received[ControlRequest]) -> Response:
    """End the running thought of a request of the same user, or the whole answer. The request is named as in
    `cancel_request`, in the path or, as llama.cpp has it, in the body.

    Raises:
        ParameterError: no name, or two names. RequestNotFoundError: see ask_running.
    """
    request, ask = received.request, received.ask
    named = request.path_params.get("id", ask.id)
    if named is None:
        raise ParameterError("id: the id of an answer is missing", "id")
    if ask.id not in (None, named):
        raise ParameterError(f"id ({format_json(ask.id, 200)}) is not that of the path", "id")
    if ask.action == "answer_end":
        await ask_running(request, "cut", named)
        return json_response(Controlled(named, True))
    armed = b"1" in await ask_running(request, "end thoughts", named)
    return json_response(Controlled(named, armed, "" if armed else UNARMED))


async def ask_running(request: Request, question: str, name: str) -> list[bytes]:
    """The answers of the front ends that run requests of this name.

    Raises:
        RequestNotFoundError: the user runs no request of this name.
    """
    found = await ask_all(request, question, name)
    if not found:
        raise RequestNotFoundError(f"no request {format_json(name, 200)} is running", "id")
    return found
