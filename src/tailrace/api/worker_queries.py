"""Queries between the front ends of the same engines: who runs a request, who stores a response, what each has counted.

A front end looks at its own data first. A single front end asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tailrace.api.response_store import make_missing_error

if TYPE_CHECKING:
    from tailrace.api.front_end import FrontEnd


def cut_requests(front: FrontEnd, name: str) -> bytes | None:
    """End running requests, named by the answer's id or by x-request-id. Returns the id of one."""
    found = [
        request
        for service in front.services.values()
        for request in service.open_requests
        if name in (request.id, request.name)
    ]
    for request in found:
        request.cut("cancelled")
    return found[0].id.encode() if found else None


def find_response(front: FrontEnd, id: str) -> bytes | None:
    """A stored response as JSON."""
    return front.responses.get(id).body if id in front.responses else None


def find_conversation(front: FrontEnd, id: str) -> bytes | None:
    """The messages up to a stored response, as JSON."""
    return front.responses.get(id).messages if id in front.responses else None


def find_inputs(front: FrontEnd, id: str) -> bytes | None:
    """The messages that a stored response answers, as JSON."""
    if id not in front.responses:
        return None
    stored = front.responses.get(id)
    return msgspec.json.encode(msgspec.json.decode(stored.messages, type=list[msgspec.Raw])[: stored.inputs])


def find_output_item(front: FrontEnd, id: str) -> bytes | None:
    """An item of a stored response's output, as JSON."""
    return front.responses.get_item(id)


def find_origin(front: FrontEnd, id: str) -> bytes | None:
    """What a stored response came from, in msgpack; b"" while it is in progress."""
    return front.responses.get(id).origin if id in front.responses else None


def find_events(front: FrontEnd, argument: str) -> bytes | None:
    """The events of a stored response from a number on, as JSON; null where it was not streamed. argument: the number,
    a blank, and the id."""
    number, _, id = argument.partition(" ")
    if id not in front.responses:
        return None
    frames = front.responses.get(id).frames
    return msgspec.json.encode(None if frames is None else [frame.decode() for frame in frames[int(number) :]])


def forget_response(front: FrontEnd, id: str) -> bytes | None:
    """Forget a stored response."""
    if id not in front.responses:
        return None
    front.responses.discard(id)
    return b""


def read_counts(front: FrontEnd, _: str) -> bytes | None:
    """What this front end has counted, in Prometheus' text format."""
    return front.metrics.own()


QUESTIONS: dict[str, Callable[[FrontEnd, str], bytes | None]] = {
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
    """This front end's own answer."""
    return QUESTIONS[question](front, argument)


async def ask_all(front: FrontEnd, question: str, argument: str = "") -> list[bytes]:
    """The answers of all front ends; this one's comes first."""
    own = answer_question(front, question, argument)
    return [*([] if own is None else [own]), *await front.ask(question, argument)]


async def ask_first(front: FrontEnd, question: str, argument: str) -> bytes | None:
    """The answer of the first front end that has one."""
    own = answer_question(front, question, argument)
    return next(iter(await front.ask(question, argument)), None) if own is None else own


async def ask_stored(front: FrontEnd, question: str, id: str, param: str | None = None) -> bytes:
    """The answer about a stored response, from the front end that stores it.

    Raises:
        RequestNotFoundError: no front end stores it (any more).
    """
    found = await ask_first(front, question, id)
    if found is None:
        raise make_missing_error(id, param)
    return found
