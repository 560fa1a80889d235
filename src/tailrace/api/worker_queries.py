"""What the front ends of the same engines ask each other: who runs a request, who keeps a response, what each has counted.

A front end looks at what it has itself first; with a single one there is nobody to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.api.store import missing

if TYPE_CHECKING:
    from tailrace.api.front_end import FrontEnd


def cut(front: FrontEnd, name: str) -> bytes | None:
    """End running requests of this name, by the id of the answer or by its x-request-id; the id of one."""
    found = [work for service in front.services.values() for work in service.live if name in (work.id, work.name)]
    for work in found:
        work.cut("cancelled")
    return found[0].id.encode() if found else None


def response(front: FrontEnd, id: str) -> bytes | None:
    """A stored response."""
    return front.responses.get(id).body if id in front.responses else None


def conversation(front: FrontEnd, id: str) -> bytes | None:
    """The conversation that a stored response ends."""
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


async def everywhere(front: FrontEnd, question: str, argument: str = "") -> list[bytes]:
    """The answers of all front ends, one's own first."""
    own = answer(front, question, argument)
    return [*([] if own is None else [own]), *await front.ask(question, argument)]


async def somewhere(front: FrontEnd, question: str, argument: str) -> bytes | None:
    """The answer of the first that has one."""
    own = answer(front, question, argument)
    return next(iter(await front.ask(question, argument)), None) if own is None else own


async def kept(front: FrontEnd, question: str, id: str, param: str | None = None) -> bytes:
    """The answer on a stored response, from whoever keeps it.

    Raises:
        RequestNotFoundError: nobody does (any more).
    """
    found = await somewhere(front, question, id)
    if found is None:
        raise missing(id, param)
    return found
