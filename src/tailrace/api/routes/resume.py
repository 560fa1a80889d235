"""GET /v1/chat/completions/{id}, /v1/completions/{id} and /v1/messages/{id}: the rest of the events of a resumable
request."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.kept_streams import make_lost_error
from tailrace.api.resumption import make_event_stream
from tailrace.api.worker_queries import ask_stream
from tailrace.errors import ParameterError, format_json

HEADER = "Last-Event-ID"
PREFIXES = {
    "/v1/chat/completions/": "chatcmpl-",
    "/v1/completions/": "cmpl-",
    "/v1/messages/": "msg_",
}  # path → of ids below it


async def resume_stream(request: Request) -> Response:
    """The events of a resumable request of the same user, from the one behind Last-Event-ID on. 204: there are no more.

    Raises:
        ParameterError: the header is no number of an event. RequestNotFoundError: no events of this id are kept.
    """
    path, number = request.scope["path"], read_number(request)
    above, prefix = next(pair for pair in PREFIXES.items() if path.startswith(pair[0]))
    id = path.removeprefix(above)
    part = await ask_stream(request, id, number) if id.startswith(prefix) else None
    if part is None:
        raise make_lost_error(id)
    if number > part.total:
        raise ParameterError(f"{HEADER}: there is no event {number} so far", HEADER)
    return Response(status_code=204) if part.is_end(number) else make_event_stream(request, id, number)


def read_number(request: Request) -> int:
    """The number of the last event that the client has; 0 without the header.

    Raises:
        ParameterError: it is no number of an event.
    """
    given = request.headers.get(HEADER, "") or "0"
    if not (given.isascii() and given.isdecimal() and len(given) < 12):
        raise ParameterError(f"{HEADER} must be the id of an event, got {format_json(given, 200)}", HEADER)
    return int(given)
