"""The life of the engine as the front end sees it: starting, ready, dead, draining. Knows no HTTP."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from tailrace.errors import EngineDeadError, NotReadyError, TailraceError
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.messages import ModelInfo
from tailrace.wire.pulse import Stall

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "dead", "draining"]
Condition = State | Literal["stalled"]

LOOK_EVERY_S = 0.25
SHOWN = 32  # requests named in a line of the log
RESTART_AFTER_S = 1.0  # so that an engine which dies at once is not restarted in a tight loop


class Supervisor:
    """Starts the engine, waits for its death, and then does what the operator chose.

    `model` is None until the engine was ready once. `error` says why the engine is dead; `dead` is set if it stays so. `stall`: the step
    that takes too long, as seen last; `stalls`: how often there was one.
    """

    def __init__(
        self, client: AsyncClient, on_engine_death: Literal["exit", "restart"], called: str = "the engine"
    ) -> None:
        self._called = called  # in the log, and to clients
        self._client = client
        self._restart = on_engine_death == "restart"
        self.state: State = "starting"
        self.model: ModelInfo | None = None
        self.error: TailraceError | None = None
        self.settled = asyncio.Event()  # for the first time ready, or dead
        self.dead = asyncio.Event()
        self.stall: Stall | None = None
        self.stalls = 0

    @property
    def condition(self) -> Condition:
        """As `state`, but an engine that is ready and does not move is stalled."""
        self.look()
        return "stalled" if self.state == "ready" and self.stall is not None else self.state

    def look(self) -> None:
        """See whether the engine moves, and say so where that has changed."""
        before, self.stall = self.stall, self._client.stall
        if before is None and self.stall is not None:
            self.stalls += 1
            ids = self._client.open_ids
            log.error(
                "%s has stalled: step %d has taken %.1f s, in part %s; open here: %s%s",
                self._called,
                self.stall.step,
                self.stall.seconds,
                self.stall.part,
                ", ".join(ids[:SHOWN]) or "nothing",
                f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "",
            )
        if before is not None and self.stall is None:
            log.warning("%s moves again, after more than %.1f s in part %s", self._called, before.seconds, before.part)

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def run(self) -> None:
        """Returns when the engine is dead and stays dead."""
        try:
            self._ready(await self._client.start())
            while True:
                await self._client.died.wait()
                self._lost(self._client.error or EngineDeadError(f"{self._called} is gone"))
                if not self._restart:
                    break
                await asyncio.sleep(RESTART_AFTER_S)
                self._ready(await self._client.restart())
        except TailraceError as error:
            self._lost(error)
        self._become("dead")
        self.dead.set()

    def drain(self) -> None:
        """Nothing new is accepted from here on."""
        self.state = "draining"

    def check(self) -> ModelInfo:
        """What is served.

        Raises:
            NotReadyError, EngineDeadError: nothing can be accepted now.
        """
        if self.state == "dead":
            raise EngineDeadError(f"{self._called} is dead: {self.error}")
        if self.state == "draining":
            raise NotReadyError("the server is shutting down")
        if self.state == "starting" or self.model is None:
            raise NotReadyError(f"{self._called} is starting; try again shortly")
        return self.model

    def _ready(self, model: ModelInfo) -> None:
        self.model, self.error = model, None
        self._become("ready")
        log.info("ready: %s, context of %d tokens", model.name, model.max_model_len)

    def _lost(self, error: TailraceError) -> None:
        self.error = error
        self._become("starting" if self._restart else "dead")
        log.error("%s is lost: %s", self._called, error)

    def _become(self, state: State) -> None:
        if self.state != "draining":  # which is final
            self.state = state
        if state in ("ready", "dead"):
            self.settled.set()
