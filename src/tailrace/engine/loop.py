"""The loop of the engine's process, between its socket and the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tailrace.config import EngineConfig
from tailrace.engine.adapters import AdapterChanges
from tailrace.engine.engine import Engine
from tailrace.errors import NotReadyError, TailraceError
from tailrace.wire.messages import (
    Abort,
    Drain,
    Drained,
    EndThoughts,
    FromEngine,
    Hello,
    PeerCount,
    PeerQuery,
    PeerReply,
    Ready,
    Sleep,
    Submit,
)
from tailrace.wire.pulse import Pulse
from tailrace.wire.sockets import EngineSocket

log = logging.getLogger("tailrace.engine")

STATS_EVERY_S = 1.0
RECEIVE_S = 0.01  # per turn for receiving messages; a call may have a thousand prompts
IDLE_POLL_MS = 200
FIRST_REQUEST_S = 5.0  # beyond `sleep_after`, for the requests to come that have woken the engine


class Loop:
    """The loop between the socket and the engine: it receives, steps and sends, turn by turn."""

    def __init__(self, engine: Engine, socket: EngineSocket, pulse: Pulse, config: EngineConfig) -> None:
        self.engine, self.socket, self.pulse = engine, socket, pulse
        engine.counters.pulse = pulse
        self.clients: set[bytes] = set()
        self.adapters = AdapterChanges(engine, config.model, self.send, self.clients)
        self.draining = self.sleeping = False
        self.sleep_after = config.scheduler.sleep_after
        self.idle_since_s = time.monotonic() + FIRST_REQUEST_S
        self.stats_due = 0.0
        self.handlers: dict[type, Callable[[bytes, Any], object]] = {
            Hello: self.answer_hello,
            Submit: self.submit,
            EndThoughts: lambda client, message: engine.end_thoughts(message, client),
            Abort: lambda client, message: engine.abort(message, client),
            Drain: lambda client, message: self.drain(),
            Sleep: lambda client, message: self.fall_asleep(message),
            PeerQuery: self.forward_query,
            PeerReply: lambda client, message: self.send(message.asker, [message]),
        }

    def run(self) -> None:
        """Run turns until drained or asleep."""
        self.pulse.enter("between")
        busy = False
        while True:
            self.pulse.beat(self.engine.counters.steps)
            self.socket.wait(0 if self.engine.has_work else IDLE_POLL_MS)
            begun = time.perf_counter()
            self.run_turn()
            still_busy = bool(self.engine.running or self.engine.waiting)
            if busy or still_busy:
                self.engine.counters.turns.add(time.perf_counter() - begun)
            if time.monotonic() >= self.stats_due or (busy and not still_busy):
                self.publish_stats()
            busy = still_busy
            if self.is_over():
                for client in list(self.clients):
                    self.send(client, [Drained(not self.draining, self.adapters.changes)])
                return

    def run_turn(self) -> None:
        """Run one turn between two waits: receive for at most RECEIVE_S, run a step, send its messages."""
        timed = self.engine.counters.time_part
        with timed("receive"):
            until_s = time.perf_counter() + RECEIVE_S
            for client, messages in self.socket.receive():
                self.clients.add(client)
                for message in messages:
                    self.handlers[type(message)](client, message)
                if time.perf_counter() > until_s:
                    break
        self.adapters.advance()
        due = self.engine.step()
        with timed("send"):
            for client, out in due.items():
                self.send(client, out)

    def is_over(self) -> bool:
        """Return whether nothing is left to do, and the engine drains, was asked to sleep, or has been idle for long
        enough."""
        if self.engine.has_work or self.adapters.loading:
            self.idle_since_s, self.sleeping = time.monotonic(), False
            return False
        idle_s = time.monotonic() - self.idle_since_s
        return self.draining or self.sleeping or 0 < self.sleep_after <= idle_s

    def answer_hello(self, client: bytes, message: Hello) -> None:
        """Answer a front end that connects with the engine's model. The front end checks the version."""
        self.send(client, [Ready(self.engine.info)])

    def submit(self, client: bytes, message: Submit) -> None:
        """Pass a request to the engine, or refuse it while draining."""
        self.idle_since_s = time.monotonic()
        if self.draining:
            refusal = NotReadyError("the engine is draining and takes nothing new")
            self.engine.refuse(message, refusal, client)
        else:
            self.engine.submit(message, client)

    def forward_query(self, client: bytes, message: PeerQuery) -> None:
        """Send a front end's question to all others, and send it their number. Answer one about adapters."""
        if self.adapters.answers(client, message):
            return
        others = self.clients - {client}
        asked = [self.send(other, [msgspec.structs.replace(message, asker=client)]) for other in others]
        self.send(client, [PeerCount(message.number, sum(asked))])

    def drain(self) -> None:
        """Refuse new requests, and end once all others are done."""
        self.draining = True

    def fall_asleep(self, message: Sleep) -> None:
        """End after this turn, unless something runs, waits or loads."""
        if message.abort:
            self.fail_all(NotReadyError("the operator has put the model to sleep; the next request wakes it"))
        self.sleeping = True

    def publish_stats(self) -> None:
        """Send the engine's counters to all front ends."""
        self.stats_due = time.monotonic() + STATS_EVERY_S
        stats = self.engine.stats()
        for client in list(self.clients):
            self.send(client, [stats])

    def send(self, client: bytes, messages: list[FromEngine]) -> bool:
        """Send messages to a front end. Return False if it is gone; its requests then end within this step."""
        there = self.socket.send(client, messages)
        if not there and client in self.clients:
            log.warning("front end %s is gone", client.hex())
            self.clients.discard(client)
            self.engine.abort_client(client)
        return there

    def fail_all(self, error: TailraceError) -> None:
        """End all requests with an error."""
        for client, messages in self.engine.fail_all(error).items():
            self.send(client, messages)
