"""Queries between the front ends of the same engines: who runs a request, who stores a response, what each has counted.

A front end looks at its own data first. A single front end asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.api.response_store import missing

if TYPE_CHECKING:
    from tailrace.api.front_end import FrontEnd


def cut(front: FrontEnd, name: str) -> bytes | None:
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


def response(front: FrontEnd, id: str) -> bytes | None:
    """A stored response as JSON."""
    return front.responses.get(id).body if id in front.responses else None


def conversation(front: FrontEnd, id: str) -> bytes | None:
    """The messages up to a stored response, as JSON."""
    return front.responses.get(id).messages if id in front.responses else None


def forget(front: FrontEnd, id: str) -> bytes | None:
    """Forget a stored response."""
    if id not in front.responses:
        return None
    front.responses.discard(id)
    return b""


def counts(front: FrontEnd, _: str) -> bytes | None:
    """What this front end has counted, in Prometheus' text format."""
    return front.metrics.own()


QUESTIONS: dict[str, Callable[[FrontEnd, str], bytes | None]] = {
    "cut": cut,
    "response": response,
    "conversation": conversation,
    "forget": forget,
    "counts": counts,
}


def answer(front: FrontEnd, question: str, argument: str) -> bytes | None:
    """This front end's own answer."""
    return QUESTIONS[question](front, argument)


async def ask_all(front: FrontEnd, question: str, argument: str = "") -> list[bytes]:
    """The answers of all front ends; this one's comes first."""
    own = answer(front, question, argument)
    return [*([] if own is None else [own]), *await front.ask(question, argument)]


async def ask_first(front: FrontEnd, question: str, argument: str) -> bytes | None:
    """The answer of the first front end that has one."""
    own = answer(front, question, argument)
    return next(iter(await front.ask(question, argument)), None) if own is None else own


async def ask_stored(front: FrontEnd, question: str, id: str, param: str | None = None) -> bytes:
    """The answer about a stored response, from the front end that stores it.

    Raises:
        RequestNotFoundError: no front end stores it (any more).
    """
    found = await ask_first(front, question, id)
    if found is None:
        raise missing(id, param)
    return found
