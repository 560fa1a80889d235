"""Queries between the front ends of the same engines: who runs a request, who stores a response, what each has counted.

A front end looks at its own data first. A single front end asks nobody. A question is about one user's data: the id of
the user and a blank come before its argument.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request

from tailrace.api.front_end import FrontEnd, front_of
from tailrace.api.response_store import Stored, make_missing_error
from tailrace.api.user import user_of


def cut_requests(front: FrontEnd, user: str, name: str) -> bytes | None:
    """End running requests of the user, named by the answer's id or by x-request-id. Returns the id of one."""
    found = [
        request
        for service in front.services.values()
        for request in service.open_requests
        if request.user == user and name in (request.id, request.name)
    ]
    for request in found:
        request.cut("cancelled")
    return found[0].id.encode() if found else None


def find_stored(front: FrontEnd, user: str, id: str) -> Stored | None:
    """Return a stored response of the user, if this front end has it."""
    share = front.responses.share_of(user)
    return share.get(id) if id in share else None


def find_response(front: FrontEnd, user: str, id: str) -> bytes | None:
    """A stored response as JSON."""
    stored = find_stored(front, user, id)
    return None if stored is None else stored.body


def find_conversation(front: FrontEnd, user: str, id: str) -> bytes | None:
    """The messages up to a stored response, as JSON."""
    stored = find_stored(front, user, id)
    return None if stored is None else stored.messages


def find_inputs(front: FrontEnd, user: str, id: str) -> bytes | None:
    """The messages that a stored response answers, as JSON."""
    stored = find_stored(front, user, id)
    if stored is None:
        return None
    return msgspec.json.encode(msgspec.json.decode(stored.messages, type=list[msgspec.Raw])[: stored.inputs])


def find_output_item(front: FrontEnd, user: str, id: str) -> bytes | None:
    """An item of a stored response's output, as JSON."""
    return front.responses.share_of(user).get_item(id)


def find_origin(front: FrontEnd, user: str, id: str) -> bytes | None:
    """What a stored response came from, in msgpack; b"" while it is in progress."""
    stored = find_stored(front, user, id)
    return None if stored is None else stored.origin


def find_events(front: FrontEnd, user: str, argument: str) -> bytes | None:
    """The events of a stored response from a number on, as JSON; null where it was not streamed. argument: the number,
    a blank, and the id."""
    number, _, id = argument.partition(" ")
    stored = find_stored(front, user, id)
    if stored is None:
        return None
    frames = None if stored.frames is None else [frame.decode() for frame in stored.frames[int(number) :]]
    return msgspec.json.encode(frames)


def forget_response(front: FrontEnd, user: str, id: str) -> bytes | None:
    """Forget a stored response."""
    share = front.responses.share_of(user)
    if id not in share:
        return None
    share.discard(id)
    return b""


def read_counts(front: FrontEnd, user: str, argument: str) -> bytes | None:
    """What this front end has counted, in Prometheus' text format."""
    return front.metrics.own()


QUESTIONS: dict[str, Callable[[FrontEnd, str, str], bytes | None]] = {
    "cut": cut_requests,
    "response": find_response,
    "conversation": find_conversation,
    "inputs": find_inputs,
    "item": find_output_item,
    "origin": find_origin,
    "events": find_events,
    "forget": forget_response,
    "counts": read_counts,
}


def answer_question(front: FrontEnd, question: str, argument: str) -> bytes | None:
    """This front end's own answer. argument: the id of the user, a blank, and the rest."""
    user, _, rest = argument.partition(" ")
    return QUESTIONS[question](front, user, rest)


async def ask_all(request: Request, question: str, argument: str = "") -> list[bytes]:
    """The answers of all front ends about data of the request's user; this one's comes first."""
    front, argument = front_of(request), f"{user_of(request.scope)} {argument}"
    own = answer_question(front, question, argument)
    return [*([] if own is None else [own]), *await front.ask(question, argument)]


async def ask_first(request: Request, question: str, argument: str) -> bytes | None:
    """The answer of the first front end that has one."""
    front, argument = front_of(request), f"{user_of(request.scope)} {argument}"
    own = answer_question(front, question, argument)
    return next(iter(await front.ask(question, argument)), None) if own is None else own


async def ask_stored(request: Request, question: str, id: str, param: str | None = None) -> bytes:
    """The answer about a stored response, from the front end that stores it.

    Raises:
        RequestNotFoundError: no front end stores it for the request's user (any more).
    """
    found = await ask_first(request, question, id)
    if found is None:
        raise make_missing_error(id, param)
    return found
