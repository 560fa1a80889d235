"""Which streams are open, and whose every message is: the bookkeeping that the three clients share. Pure: no I/O, no clock.

A stream is named (id, epoch); epochs count up, so a reused id never meets an old output. What arrives for a stream that is
not open (any more) is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from uuid import uuid4

from tailrace.errors import TailraceError
from tailrace.params import SamplingParams
from tailrace.wire.messages import (
    Aborted,
    Drained,
    Failed,
    Finished,
    FromEngine,
    ModelInfo,
    PromptLogprobs,
    Ready,
    SequenceEvent,
    Stats,
    Submit,
    Tokens,
)


@dataclass(eq=False, slots=True)
class Account:
    """One open stream: events not yet fetched, sequences not yet ended, and whom to wake."""

    id: str
    epoch: int
    open: set[int]
    events: list[SequenceEvent] = field(default_factory=list)
    wake: Callable[[], None] = lambda: None

    def take(self) -> list[SequenceEvent]:
        """Everything that arrived since the last time."""
        events, self.events = self.events, []
        return events


class Ledger:
    """Open streams, unacknowledged aborts, and the last word of the engine on itself."""

    def __init__(self) -> None:
        self.accounts: dict[tuple[str, int], Account] = {}
        self.unacknowledged: set[tuple[str, int]] = set()
        self.stopped: set[tuple[str, int, int]] = set()  # sequences ended here before the engine knew
        self.wasted = 0  # tokens drawn for them all the same
        self.epochs = count(1)
        self.model: ModelInfo | None = None
        self.version: int | None = None
        self.stats = Stats()
        self.drained = False

    def open(
        self, prompt: list[int], params: SamplingParams, id: str | None, priority: int, arrival_s: float
    ) -> tuple[Account, Submit]:
        """A new stream and the message that asks for it."""
        account = Account(id or uuid4().hex, next(self.epochs), set(range(params.n)))
        self.accounts[account.id, account.epoch] = account
        return account, Submit(account.id, account.epoch, prompt, params, priority, arrival_s)

    def close(self, account: Account) -> bool:
        """Forget the stream; True if sequences were still open, so that the engine must be told."""
        name = (account.id, account.epoch)
        if self.accounts.pop(name, None) is None or not account.open:
            return False
        account.open.clear()
        account.events.clear()
        account.wake()
        self.unacknowledged.add(name)
        return True

    def close_sequence(self, account: Account, index: int) -> bool:
        """Nothing more of this sequence is wanted; True if it was still open, so that the engine must be told."""
        if index not in account.open:
            return False
        account.open.discard(index)
        self.stopped.add((account.id, account.epoch, index))
        account.events = [event for event in account.events if event.index != index]
        account.wake()
        return True

    def deliver(self, messages: Iterable[FromEngine]) -> None:
        """Route what the engine said."""
        woken: set[Account] = set()
        for message in messages:
            match message:
                case PromptLogprobs():
                    account = self.accounts.get((message.id, message.epoch))
                    if account is not None:
                        account.events.append(message)
                        woken.add(account)
                case Tokens() | Finished() | Failed():
                    account = self.accounts.get((message.id, message.epoch))
                    if account is None or message.index not in account.open:
                        if isinstance(message, Tokens) and (message.id, message.epoch, message.index) in self.stopped:
                            self.wasted += len(message.token_ids)
                        continue
                    account.events.append(message)
                    if not isinstance(message, Tokens):
                        account.open.discard(message.index)
                    woken.add(account)
                case Aborted():
                    if message.index is None:
                        self.unacknowledged.discard((message.id, message.epoch))
                    else:
                        self.stopped.discard((message.id, message.epoch, message.index))
                case Stats():
                    self.stats = message
                case Ready():
                    self.model, self.version = message.model, message.version
                case Drained():
                    self.drained = True
        for account in woken:
            account.wake()

    def fail_all(self, error: TailraceError) -> None:
        """The engine is gone: every sequence that is still open ends with Failed."""
        for account in list(self.accounts.values()):
            for index in sorted(account.open):
                account.events.append(Failed(account.id, account.epoch, index, error.code, str(error)))
            account.open.clear()
            account.wake()
        self.unacknowledged.clear()
        self.stopped.clear()
        self.stats = Stats()
