"""What a front end has once, however many models it serves: its settings, its turns, the stored responses, and a Service per model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request

from tailrace.api.access_log import Observer
from tailrace.api.metrics import Exposition, Metrics
from tailrace.api.service import Service
from tailrace.api.store import ResponseStore
from tailrace.api.turns import Turns
from tailrace.api.worker_queries import answer
from tailrace.config import ServerConfig
from tailrace.errors import ModelNotFoundError
from tailrace.wire.async_client import AsyncClient

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class FrontEnd:
    """One per app, in `app.state.front`. `add` its models before it serves; the first is the default.

    Args:
        named: the operator has named the models: metrics and lines of the log say which one it was.
        attached: the engines are another's, who ends this one too.

    Attributes:
        over: set when it can't go on: a model could not be had at all, or none is left.
    """

    def __init__(self, config: ServerConfig, named: bool = False, attached: bool = False) -> None:
        self.config, self.named, self.attached = config, named, attached
        self.services: dict[str, Service] = {}
        self.adapted: dict[str, Service] = {}  # adapters by name, each with the service of its model
        self.turns, self.responses = Turns(), ResponseStore()
        self.observer = Observer(config, named)
        self._counted: dict[str, Metrics] = {}
        self.metrics = Exposition(self._counted)
        for name, text, held in (
            ("num_responses_stored", "Responses kept for retrieval.", lambda: len(self.responses)),
            ("responses_stored_bytes", "Memory that they take.", lambda: self.responses.bytes),
        ):
            self.metrics.watch(f"tailrace_{name}", text, held)
        self.others_gone: Callable[[], Awaitable[None]] = nobody  # waits for whoever else needs this one's engines
        self.over = asyncio.Event()

    def add(
        self,
        client: AsyncClient,
        tokenizer: Tokenizer,
        name: str,
        defaults: Mapping[str, float | int] | None = None,
        adapters: Iterable[str] = (),
    ) -> Service:
        """One more model, by the name that requests give. client: not started. defaults: sampling fields of the model. adapters: names of
        those that its engine has."""
        service = self.services[name] = Service(self, client, tokenizer, name, defaults or {})
        self._counted[name if self.named else ""] = service.metrics
        self.adapted |= {adapter: service.adapted(adapter) for adapter in adapters}
        client.answer = partial(answer, self)
        return service

    @property
    def default(self) -> Service:
        """Of requests that name no model."""
        return next(iter(self.services.values()))

    @property
    def served(self) -> dict[str, Service]:
        """All that a request may name."""
        return self.services | self.adapted

    def find(self, name: str | None) -> Service:
        """Of the model or adapter of that name; None is the default.

        Raises:
            ModelNotFoundError: there is none.
        """
        if name is None:
            return self.default
        if name not in self.served:
            known = ", ".join(map(repr, self.served))
            raise ModelNotFoundError(f"the model {name!r:.200} does not exist; there is {known}", "model")
        return self.served[name]

    async def keep(self, service: Service) -> None:
        """Start the model's engine and watch over it until it is gone for good."""
        supervisor = service.supervisor
        await supervisor.run()
        if self.attached:
            return
        if supervisor.model is None or all(other.supervisor.dead.is_set() for other in self.services.values()):
            if len(self.services) > 1 and supervisor.model is None:
                log.error("the server ends: the model %s can't be had: %s", service.model_name, supervisor.error)
            self.over.set()

    async def ask(self, question: str, argument: str) -> list[bytes]:
        """What the other front ends answer: any engine that lives carries the question, one that moves rather than one that is stalled."""
        if self.config.front_ends == 1:
            return []
        ready = [service for service in self.services.values() if service.client.ready]
        carrier = min(ready, key=lambda service: service.supervisor.stall is not None, default=None)
        return [] if carrier is None else await carrier.client.ask(question, argument)

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new; let what runs finish within the time, then end it with an error."""
        await asyncio.gather(*(service.drain(timeout_s) for service in self.services.values()))

    async def close(self) -> None:
        """End the engines, and what is left of their requests."""
        await asyncio.gather(*(service.client.close() for service in self.services.values()))


async def nobody() -> None:
    """There is nobody to wait for."""


def front_of(request: Request) -> FrontEnd:
    """The front end behind a request."""
    return request.app.state.front


def service_for(request: Request, model: str | None) -> Service:
    """The service of the model that a request names; from here on the request's own.

    Raises:
        ModelNotFoundError: there is no such model.
    """
    request.state.service = front_of(request).find(model)
    return request.state.service
