"""The state of the engine as the front end sees it: starting, ready, asleep, dead, draining. Knows no HTTP."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from tailrace.errors import EngineDeadError, NotReadyError, TailraceError, describe_error
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.messages import ModelInfo
from tailrace.wire.pulse import Stall

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "sleeping", "dead", "draining"]
Condition = State | Literal["stalled", "loading"]

CHECK_EVERY_S = 0.25
SHOWN = 32  # requests that a log line names
RESTART_AFTER_S = 1.0  # so that an engine which dies at once is not restarted in a tight loop


class Supervisor:
    """Starts the engine, restarts or gives it up when it dies, as the operator chose, and loads it again when it sleeps
    and a request comes.

    - model: None until the engine was ready once.
    - error: why the engine is dead, or could not be loaded again.
    - dead: set if the engine stays dead.
    - stall: the step that takes too long, as seen last.
    - stalls: how many such steps there were.
    - owner: of the engine. Several front ends see an engine come and go, and its owner alone reports it in the log.
    """

    def __init__(
        self, client: AsyncClient, on_engine_death: Literal["exit", "restart"], called: str = "the engine"
    ) -> None:
        self._called = called  # the engine's name in the log and in errors
        self._client = client
        self._restart = on_engine_death == "restart"
        self.state: State = "starting"
        self.model: ModelInfo | None = None
        self.error: TailraceError | None = None
        self.settled = asyncio.Event()  # ready for the first time, dead or draining
        self.dead = asyncio.Event()
        self.stall: Stall | None = None
        self.stalls = 0
        self.owner = True

    @property
    def condition(self) -> Condition:
        """As `state`; "stalled" if the engine is ready but its step takes too long, "loading" if it has slept and a
        request waits for it."""
        self.check_stall()
        if self.state == "sleeping" and self._client.sleep.loading:
            return "loading"
        return "stalled" if self.state == "ready" and self.stall is not None else self.state

    def check_stall(self) -> None:
        """See whether the engine is stalled, and log a change."""
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
        """Check for stalls again and again, until cancelled."""
        while True:
            self.check_stall()
            await asyncio.sleep(CHECK_EVERY_S)

    async def run(self) -> None:
        """Run the engine; returns when it is dead and stays dead."""
        try:
            self._handle_ready(await self._client.start())
            while True:
                await self._client.died.wait()
                if self._client.asleep:
                    await self._keep_asleep()
                    continue
                self._handle_loss(self._client.error or EngineDeadError(f"{self._called} is gone"))
                if not self._restart:
                    break
                await asyncio.sleep(RESTART_AFTER_S)
                self._handle_ready(await self._client.restart())
        except TailraceError as error:
            self._handle_loss(error)
        except Exception as error:  # whatever it is, nobody may wait for this engine for ever
            log.debug("%s could not be started", self._called, exc_info=True)
            self._handle_loss(EngineDeadError(f"it could not be started: {describe_error(error)}"))
        self._set_state("dead")
        self.dead.set()

    def drain(self) -> None:
        """Refuse new requests. Nothing waits for the engine any more."""
        self.state = "draining"
        self.settled.set()

    def check(self) -> ModelInfo:
        """The model that is served.

        Raises:
            NotReadyError, EngineDeadError: no request can be accepted now.
        """
        if self.state == "dead":
            raise EngineDeadError(f"{self._called} is dead: {self.error}")
        if self.state == "draining":
            raise NotReadyError("the server is shutting down")
        # an engine that sleeps is loaded when a request waits for it
        if self.state == "starting" or self.model is None:
            raise NotReadyError(f"{self._called} is starting; try again shortly")
        return self.model

    async def _keep_asleep(self) -> None:
        """Return when the engine is ready again."""
        while True:
            self._set_state("sleeping")
            self._report(logging.INFO, f"{self._called} sleeps; the next request loads it")
            try:
                return self._handle_ready(await self._client.wake())
            except TailraceError as error:
                self.error = error
                self._report(
                    logging.ERROR, f"{self._called} could not be loaded: {error}; the next request tries again"
                )

    def _handle_ready(self, model: ModelInfo) -> None:
        self.model, self.error = model, None
        self._set_state("ready")
        self._report(logging.INFO, f"ready: {model.name}, context of {model.max_model_len} tokens")

    def _handle_loss(self, error: TailraceError) -> None:
        self.error = error
        self._set_state("starting" if self._restart else "dead")
        self._report(logging.ERROR, f"{self._called} is lost: {error}")

    def _report(self, level: int, text: str) -> None:
        log.log(level if self.owner else logging.DEBUG, "%s", text)

    def _set_state(self, state: State) -> None:
        if self.state != "draining":  # draining is final
            self.state = state
        if state in ("ready", "sleeping", "dead"):
            self.settled.set()
