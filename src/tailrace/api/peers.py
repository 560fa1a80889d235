"""What the front ends of one engine ask each other: who runs a request, who keeps a response, what each has counted.

A front end looks at what it has itself first; with a single one there is nobody to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.api.store import missing

if TYPE_CHECKING:
    from tailrace.api.service import Service


def cut(service: Service, name: str) -> bytes | None:
    """End running requests of this name, by the id of the answer or by its x-request-id; the id of one."""
    found = [work for work in service.live if name in (work.id, work.name)]
    for work in found:
        work.cut("cancelled")
    return found[0].id.encode() if found else None


def response(service: Service, id: str) -> bytes | None:
    """A stored response."""
    return service.responses.get(id).body if id in service.responses else None


def conversation(service: Service, id: str) -> bytes | None:
    """The conversation that a stored response ends."""
    return service.responses.get(id).messages if id in service.responses else None


def forget(service: Service, id: str) -> bytes | None:
    """Forget a stored response."""
    if id not in service.responses:
        return None
    service.responses.discard(id)
    return b""


def counts(service: Service, _: str) -> bytes | None:
    """What this front end has counted, in Prometheus' text format."""
    return service.metrics.own()


QUESTIONS: dict[str, Callable[[Service, str], bytes | None]] = {
    "cut": cut, "response": response, "conversation": conversation, "forget": forget, "counts": counts,
}  # fmt: skip


def answer(service: Service, question: str, argument: str) -> bytes | None:
    """This front end's own answer."""
    return QUESTIONS[question](service, argument)


async def everywhere(service: Service, question: str, argument: str = "") -> list[bytes]:
    """The answers of all front ends, one's own first."""
    own = answer(service, question, argument)
    others = await service.client.ask(question, argument) if service.config.front_ends > 1 else []
    return [*([] if own is None else [own]), *others]


async def somewhere(service: Service, question: str, argument: str) -> bytes | None:
    """The answer of the first that has one."""
    own = answer(service, question, argument)
    if own is not None or service.config.front_ends == 1:
        return own
    return next(iter(await service.client.ask(question, argument)), None)


async def kept(service: Service, question: str, id: str, param: str | None = None) -> bytes:
    """The answer on a stored response, from whoever keeps it.

    Raises:
        RequestNotFoundError: nobody does (any more).
    """
    found = await somewhere(service, question, id)
    if found is None:
        raise missing(id, param)
    return found
