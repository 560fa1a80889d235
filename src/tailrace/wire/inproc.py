"""The in-process client: the engine runs in your thread, a step whenever a stream has nothing to give."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from tailrace.params import SamplingParams
from tailrace.wire.ledger import Account, Ledger
from tailrace.wire.messages import Abort, FromEngine, ModelInfo, SequenceEvent, Stats, Submit


class EngineLike(Protocol):
    """What this client needs of engine.Engine."""

    info: ModelInfo

    def submit(self, message: Submit, client: bytes = b"") -> None: ...
    def abort(self, message: Abort, client: bytes = b"") -> None: ...
    def step(self) -> dict[bytes, list[FromEngine]]: ...
    def stats(self) -> Stats: ...


class InprocStream:
    """Iterating yields lists of events: all that came since the last. Leaving `with` early aborts."""

    def __init__(self, client: InprocClient, account: Account) -> None:
        self._client, self._account = client, account
        self.id, self.epoch = account.id, account.epoch

    def __iter__(self) -> Iterator[list[SequenceEvent]]:
        while self._account.open or self._account.events:
            if self._account.events:
                yield self._account.take()
            else:
                self._client.step()
        self._client._ledger.close(self._account)

    def abort(self, cause: str = "client") -> None:
        """End it; nothing more is delivered. Idempotent."""
        if self._client._ledger.close(self._account):
            self._client._engine.abort(Abort(self.id, self.epoch, cause))
            self._client.step()

    def abort_sequence(self, index: int, cause: str = "stop string") -> None:
        """End one sequence; the others go on. Idempotent."""
        if self._client._ledger.close_sequence(self._account, index):
            self._client._engine.abort(Abort(self.id, self.epoch, cause, index))
            self._client.step()

    def __enter__(self) -> InprocStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.abort()


class InprocClient:
    """See wire/sync.py for the interface that the three clients share."""

    error = None

    def __init__(self, engine: EngineLike) -> None:
        self._engine, self._ledger = engine, Ledger()
        self.model = engine.info

    def start(self) -> ModelInfo:
        """Nothing to wait for."""
        return self.model

    @property
    def stats(self) -> Stats:
        """Of now."""
        return self._engine.stats()

    def submit(
        self, prompt: list[int], params: SamplingParams, *, id: str | None = None, priority: int = 0
    ) -> InprocStream:
        """Ask for a generation."""
        account, message = self._ledger.open(prompt, params, id, priority, time.time())
        self._engine.submit(message)
        return InprocStream(self, account)

    def step(self) -> None:
        """One step of the engine, its messages delivered."""
        self._ledger.deliver(self._engine.step().get(b"", []))

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Run all that is open to its end; True if it came within the time."""
        until = time.monotonic() + timeout_s
        while any(account.open for account in self._ledger.accounts.values()):
            if time.monotonic() > until:
                return False
            self.step()
        return True

    def close(self) -> None:
        """Abort what is open."""
        for account in list(self._ledger.accounts.values()):
            InprocStream(self, account).abort("close")
