"""Queries between the front ends of the same engines: who runs a request, who stores a response, what each has counted.

A front end looks at its own data first, and in the file of stored responses. A single front end asks nobody. A question
is about one user's data: the id of the user and a blank come before its argument.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request

from tailrace.api.conversation_changes import change_in_memory
from tailrace.api.front_end import FrontEnd, front_of
from tailrace.api.kept_streams import StreamPart
from tailrace.api.response_store import Responses
from tailrace.api.service import OpenRequest
from tailrace.api.stored import check_response_id, make_missing_error, select_frames
from tailrace.api.user import user_of


def find_requests(front: FrontEnd, user: str, name: str) -> list[OpenRequest]:
    """The running requests of the user of this name: the answer's id, or x-request-id."""
    return [
        request
        for service in front.services.values()
        for request in service.open_requests
        if request.user == user and name in (request.id, request.name)
    ]


def cut_requests(front: FrontEnd, user: str, name: str) -> bytes | None:
    """End running requests of the user. Returns the id of one."""
    found = find_requests(front, user, name)
    for request in found:
        request.cut("cancelled")
    return found[0].id.encode() if found else None


def end_thoughts(front: FrontEnd, user: str, name: str) -> bytes | None:
    """Close the thoughts of running requests of the user. Returns b"1" where that can be done, else b"0"."""
    found = [request.end_thoughts() for request in find_requests(front, user, name)]
    return (b"1" if any(found) else b"0") if found else None


def read_body(responses: Responses, id: str) -> bytes | None:
    """A stored response as JSON."""
    stored = responses.find(id)
    return None if stored is None else stored.body


def read_conversation(responses: Responses, id: str) -> bytes | None:
    """The items up to the end of a stored response, as JSON."""
    stored = responses.find(id)
    return None if stored is None else stored.messages


def read_inputs(responses: Responses, id: str) -> bytes | None:
    """The items that a stored response answers, as JSON."""
    stored = responses.find(id)
    if stored is None:
        return None
    return msgspec.json.encode(msgspec.json.decode(stored.messages, type=list[msgspec.Raw])[: stored.inputs])


def read_item(responses: Responses, id: str) -> bytes | None:
    """An item of a stored response's output, as JSON."""
    return responses.find_item(id)


def read_origin(responses: Responses, id: str) -> bytes | None:
    """What a stored response came from, in msgpack; b"" while it is in progress."""
    stored = responses.find(id)
    return None if stored is None else stored.origin


def read_events(responses: Responses, argument: str) -> bytes | None:
    """The events of a stored response from a number on, as JSON; null where it was not streamed. argument: the number,
    a blank, and the id."""
    number, _, id = argument.partition(" ")
    stored = responses.find(id)
    if stored is None:
        return None
    return msgspec.json.encode(None if stored.frames is None else select_frames(stored.frames, int(number)))


# about one stored response of the user, in memory or in the file
READS: dict[str, Callable[[Responses, str], bytes | None]] = {
    "response": read_body,
    "conversation": read_conversation,
    "inputs": read_inputs,
    "item": read_item,
    "origin": read_origin,
    "events": read_events,
}


def forget_response(front: FrontEnd, user: str, id: str) -> bytes | None:
    """Forget a response that this front end has in memory. What it is about to store is deleted from the file too."""
    share = front.responses.share_of(user)
    if share.find(id) is None:
        return None
    share.discard(id)
    if front.background.has(user, id):  # nobody can read it any more
        cut_requests(front, user, id)
    if front.file is not None:
        front.file.spawn(front.file.delete(user, id))
    return b""


def read_counts(front: FrontEnd, user: str, argument: str) -> bytes | None:
    """What this front end has counted, in Prometheus' text format."""
    return front.metrics.own()


def confirm_messages(front: FrontEnd, user: str, argument: str) -> bytes | None:
    """Return an empty answer. A front end that answers has read all earlier messages of the engine."""
    return b""


def read_stream(front: FrontEnd, user: str, argument: str) -> bytes | None:
    """A StreamPart of a resumable request, in msgpack. argument: the number of the event before, a blank, and the
    id."""
    number, _, id = argument.partition(" ")
    part = front.streams.read_part(user, id, int(number))
    return None if part is None else msgspec.msgpack.encode(part)


QUESTIONS: dict[str, Callable[[FrontEnd, str, str], bytes | None]] = {
    "cut": cut_requests,
    "end thoughts": end_thoughts,
    "forget": forget_response,
    "stream": read_stream,
    "change conversation": change_in_memory,
    "counts": read_counts,
    "settled": confirm_messages,
}


def answer_question(front: FrontEnd, question: str, argument: str) -> bytes | None:
    """This front end's own answer. argument: the id of the user, a blank, and the rest."""
    user, _, rest = argument.partition(" ")
    if question in READS:
        return READS[question](front.responses.share_of(user), rest)
    return QUESTIONS[question](front, user, rest)


async def ask_all(request: Request, question: str, argument: str = "") -> list[bytes]:
    """The answers of all front ends about data of the request's user; this one's comes first."""
    front, argument = front_of(request), f"{user_of(request.scope)} {argument}"
    own = answer_question(front, question, argument)
    return [*([] if own is None else [own]), *await front.ask(question, argument)]


async def ask_first(request: Request, question: str, argument: str) -> bytes | None:
    """The first answer about a stored response of the request's user, one of READS.

    A running response is in the memory of the front end that runs it. The file has its end, or, if that front end is
    gone, the state that it left.

    Raises:
        StorageError: the file can't be read.
    """
    front, user = front_of(request), user_of(request.scope)
    found = READS[question](front.responses.share_of(user), argument)
    if found is None and front.file is not None:
        found = await front.file.read(READS[question], user, argument, ended=True)
    if found is None:
        found = next(iter(await front.ask(question, f"{user} {argument}")), None)
    if found is None and front.file is not None:
        found = await front.file.read(READS[question], user, argument, ended=False)
    return found


async def ask_stream(request: Request, id: str, number: int) -> StreamPart | None:
    """The events of a resumable request of the request's user behind event `number`; None if no front end has them."""
    front, user = front_of(request), user_of(request.scope)
    part = front.streams.read_part(user, id, number)
    if part is None and (found := await front.ask("stream", f"{user} {number} {id}")):
        part = msgspec.msgpack.decode(found[0], type=StreamPart)
    return part


async def forget_stored(request: Request, id: str) -> None:
    """Delete a stored response of the request's user, wherever it is.

    Raises:
        RequestNotFoundError: it is not stored for the request's user (any more). StorageError: the file can't be
            written.
    """
    front, user = front_of(request), user_of(request.scope)
    found = bool(await ask_all(request, "forget", id))
    if front.file is not None:
        found |= await front.file.run(lambda database: database.delete(user, id), user)
    if not found:
        raise make_missing_error(id)


async def ask_stored(request: Request, question: str, id: str, param: str | None = None) -> bytes:
    """The answer about a stored response, from the front end that stores it.

    Raises:
        RequestNotFoundError: it is not stored for the request's user (any more). StorageError: the file can't be read.
    """
    check_response_id(id, param)
    found = await ask_first(request, question, id)
    if found is None:
        raise make_missing_error(id, param)
    return found
