"""What a front end has once, however many models it serves: settings, work queue, stored responses, and a Service per
model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request

from tailrace.api.access_log import Observer
from tailrace.api.background import BackgroundRuns
from tailrace.api.formats import check_parsers
from tailrace.api.kept_streams import KeptStreams
from tailrace.api.metrics import Exposition, Metrics
from tailrace.api.response_file import ResponseFile
from tailrace.api.response_store import ResponseStore, make_bounds
from tailrace.api.sealed import Sealer
from tailrace.api.service import Service, Shared
from tailrace.api.user import make_weigher
from tailrace.api.user_limits import UserLimits
from tailrace.api.user_metrics import UserMetrics
from tailrace.api.user_table import TableLayout, UserTable
from tailrace.api.work_queue import WorkQueue
from tailrace.config import ServerConfig
from tailrace.errors import ModelNotFoundError, format_json
from tailrace.wire.async_client import AsyncClient

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

CLEAN_S = 10.0  # between two cleanups of the stored responses
CLEAN_SLICE = 1000  # responses in memory that one cleanup looks at


class FrontEnd:
    """One per app, in `app.state.front`. `add` its models before it serves; the first is the default.

    Args:
        named: the operator has named the models; metrics and log lines name them too.
        attached: another process owns the engines, and ends this one.
        table: what all front ends know of users; None: this front end is the only one.

    Raises:
        ConfigError: see check_parsers, Sealer and ResponseFile.

    Attributes:
        over: set when the front end can't go on: a model could not be loaded at all, or no engine is left.
        limits: of users; None: there are none.
    """

    def __init__(
        self, config: ServerConfig, named: bool = False, attached: bool = False, table: UserTable | None = None
    ) -> None:
        check_parsers(config)
        self.config, self.named, self.attached = config, named, attached
        self.services: dict[str, Service] = {}
        self.aliased: dict[str, Service] = {}
        self._first_adapters: dict[str, tuple[str, ...]] = {}
        self._adapted: dict[str, Service] = {}
        path, bounds, weigh = config.stored_responses_file, make_bounds(config), make_weigher(config)
        self.work_queue, self.responses = WorkQueue(weigh), ResponseStore(*bounds)
        self.observer, self.streams = Observer(config, named), KeptStreams(config.resume_mib << 20, config.resume_s)
        self.sealer, self.background = Sealer(config.encryption_key), BackgroundRuns()
        self.file = None if path is None else ResponseFile(path, bounds, owner=not attached, weigh=weigh)
        if table is None and config.tracks_users:
            table = UserTable(TableLayout.of(config))
        self.limits = UserLimits(config, table) if table is not None and config.limits_users else None
        self._counted: dict[str, Metrics] = {}
        self.metrics = Exposition(self._counted)
        self._user_metrics = None
        if table is not None and config.metrics_by_user:
            self._user_metrics = UserMetrics(config, table)
            self.metrics.register(self._user_metrics)
            if self.limits is not None:
                self.limits.on_refused = self._user_metrics.count_refusal
        self._shared = Shared(config, self.work_queue, self.observer, named, self._user_metrics)
        for name, text, held in (
            ("num_responses_stored", "Responses kept for retrieval.", lambda: self.count_stored()[0]),
            ("responses_stored_bytes", "Bytes that they take.", lambda: self.count_stored()[1]),
            ("num_streams_kept", "Resumable requests whose events are kept.", lambda: len(self.streams.store)),
            ("streams_kept_bytes", "Bytes that they take.", lambda: self.streams.store.bytes),
            (
                "num_responses_not_stored",
                "Responses that could not be stored in the file, since the start.",
                lambda: 0 if self.file is None else self.file.failures,
            ),
        ):
            self.metrics.watch(f"tailrace_{name}", text, held)
        self.others_gone: Callable[[], Awaitable[None]] = no_others  # waits for the other users of the engines
        self.over = asyncio.Event()

    def add(
        self,
        client: AsyncClient,
        tokenizer: Tokenizer,
        name: str,
        defaults: Mapping[str, float | int] | None = None,
        adapters: Iterable[str] = (),
        aliases: Iterable[str] = (),
    ) -> Service:
        """Add a model under the name that requests give.

        Args:
            client: not started. defaults: sampling fields of the model. adapters: names of the adapters that its engine
                begins with. aliases: other names of the model.
        """
        service = self.services[name] = Service(self._shared, client, tokenizer, name, defaults or {})
        self._counted[name if self.named else ""] = service.metrics
        self.aliased |= {alias: service.with_alias(alias) for alias in aliases}
        self._first_adapters[name] = tuple(adapters)
        return service

    @property
    def default(self) -> Service:
        """The service of requests that name no model."""
        return next(iter(self.services.values()))

    @property
    def adapted(self) -> dict[str, Service]:
        """Adapter name → service, of the adapters that the engines have now."""
        now = {name: service for service in self.services.values() for name in self._list_adapters(service)}
        if {name: service.parent for name, service in self._adapted.items()} != {
            name: service.base_name for name, service in now.items()
        }:
            self._adapted = {name: service.with_adapter(name) for name, service in now.items()}
        return self._adapted

    def _list_adapters(self, service: Service) -> Iterable[str]:
        client = service.client
        known = client.ready or client.asleep
        return client.model.adapters if known else self._first_adapters[service.base_name]

    @property
    def served(self) -> dict[str, Service]:
        """Services by every name that a request may give."""
        return self.services | self.aliased | self.adapted

    def find(self, name: str | None) -> Service:
        """The service of a model or adapter by any of its names; None is the default.

        Raises:
            ModelNotFoundError: no model or adapter has this name.
        """
        if name is None:
            return self.default
        if name not in self.served:
            known = ", ".join(map(format_json, self.served))
            raise ModelNotFoundError(f"the model {format_json(name, 200)} does not exist; there is {known}", "model")
        return self.served[name]

    def observe_wait(self, user: str, wait_s: float) -> None:
        """Note that a request of a user has waited so long until it was prepared."""
        self.metrics.preparation_wait.observe(wait_s)
        if self._user_metrics is not None and wait_s:
            self._user_metrics.add_wait(user, wait_s)

    async def keep(self, service: Service) -> None:
        """Start the model's engine and supervise it until it is gone for good."""
        supervisor = service.supervisor
        await supervisor.run()
        if self.attached:
            return
        if supervisor.model is None or all(other.supervisor.dead.is_set() for other in self.services.values()):
            if len(self.services) > 1 and supervisor.model is None:
                log.error("the server ends: the model %s can't be had: %s", service.model_name, supervisor.error)
            self.over.set()

    async def ask(self, question: str, argument: str) -> list[bytes]:
        """The answers of the other front ends. A living engine carries the question, preferably one that is not
        stalled."""
        if self.config.front_ends == 1:
            return []
        ready = [service for service in self.services.values() if service.client.ready]
        carrier = min(ready, key=lambda service: service.supervisor.stall is not None, default=None)
        return [] if carrier is None else await carrier.client.ask(question, argument)

    def count_stored(self) -> tuple[int, int]:
        """The responses that this front end counts, and their bytes. All front ends share a file; the first counts."""
        if self.file is None:
            return len(self.responses), self.responses.bytes
        return (self.file.database.responses, self.file.database.bytes) if self.file.owner else (0, 0)

    async def clean_responses(self) -> None:
        """Drop stored responses that are too old, again and again, until cancelled."""
        while True:
            self.responses.expire(CLEAN_SLICE)
            self.streams.store.expire(CLEAN_SLICE)
            if self.file is not None:
                await self.file.clean()
            await asyncio.sleep(CLEAN_S)

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new; let what runs finish within the time, then end it with an error."""
        await asyncio.gather(*(service.drain(timeout_s) for service in self.services.values()))

    def unlock_file(self) -> None:
        """Release the file of stored responses, also after a start that failed. Idempotent."""
        if self.file is not None:
            self.file.unlock()

    async def close(self) -> None:
        """End the engines and their open requests; then close the file of stored responses."""
        for service in self.services.values():
            service.end_requests()
        await asyncio.gather(*(service.client.close() for service in self.services.values()))
        await self.streams.close()
        await self.background.close()
        if self.file is not None:
            await self.file.close()


async def no_others() -> None:
    """Nothing to wait for."""


def front_of(request: Request) -> FrontEnd:
    """The front end behind a request."""
    return request.app.state.front
