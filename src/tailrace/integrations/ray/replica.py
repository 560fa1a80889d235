"""A replica: tailrace's application with its engine, without a port of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from ray import serve
from starlette.types import Message, Scope

from tailrace.api.app import app_of
from tailrace.api.front_end import FrontEnd
from tailrace.cli.local import prepare_all
from tailrace.config import Config
from tailrace.errors import EngineDeadError
from tailrace.integrations.ray.asgi_call import call_app
from tailrace.models import choose_sampling_defaults
from tailrace.wire.async_client import AsyncClient

REPLICA = b"x-tailrace-replica"  # the name of the replica that answered


class Replica:
    """A replica. Ray makes it; its constructor returns once the engine is ready.

    Raises:
        TailraceError: there is no such model, or its engine does not start.
    """

    async def __init__(self, config: Config) -> None:
        self._name = serve.get_replica_context().replica_id.unique_id.encode()
        server, named = config.server, bool(config.models)
        self._front = FrontEnd(server, named)
        for one in prepare_all(config):
            engine, label = one.config.engine, one.name if named else ""
            client = AsyncClient(engine, server.start_timeout_s, label=label, scheduler=engine.scheduler)
            found = choose_sampling_defaults(one.folder, one.asked, server.model_defaults)
            model = one.config.model
            self._front.add(client, one.tokenizer, one.name, found, model.adapters, model.other_names)
        self._app, self._running = app_of(self._front), AsyncExitStack()
        await self._running.enter_async_context(self._app.router.lifespan_context(self._app))
        for service in self._front.services.values():
            await service.supervisor.settled.wait()
        if self._front.over.is_set() or any(s.supervisor.model is None for s in self._front.services.values()):
            errors = [s.supervisor.error for s in self._front.services.values()]
            await self._running.aclose()
            raise next(error for error in errors if error is not None)

    async def answer(self, scope: Scope, body: bytes, key: bytes | None = None) -> AsyncGenerator[list[Message], None]:
        """Yield the answer as ASGI messages, in batches. key: for the router alone."""
        messages = call_app(self._app, scope, body)
        try:
            async for batch in messages:
                if batch[0]["type"] == "http.response.start":
                    batch[0]["headers"] = [*batch[0]["headers"], (REPLICA, self._name)]
                yield batch
        finally:
            await messages.aclose()

    def check_health(self) -> None:
        """Raise EngineDeadError if the engine is dead for good. Ray then replaces the replica."""
        dead = [service.supervisor for service in self._front.services.values() if service.supervisor.dead.is_set()]
        if dead:
            raise EngineDeadError(f"the engine is dead: {dead[0].error}")

    async def __del__(self) -> None:
        """End the engine, after Ray has drained the replica."""
        if hasattr(self, "_running"):
            await self._running.aclose()
