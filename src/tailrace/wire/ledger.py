"""Which streams are open, and whose every message is: the bookkeeping that the three clients share. Pure: no I/O, no clock.

A stream is named (id, epoch); epochs count up, so a reused id never meets an old output. What arrives for a stream that is
not open (any more) is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from uuid import uuid4

from tailrace.errors import TailraceError
from tailrace.params import SamplingParams
from tailrace.wire.messages import (
    Aborted,
    Answer,
    Ask,
    Asked,
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

# What waiting tokens take in memory, about: an id in a list; its logprobs; each rival in them
ID_BYTES, ENTRY_BYTES, RIVAL_BYTES = 40, 200, 70


@dataclass(eq=False, slots=True)
class Account:
    """One open stream: events not yet fetched, sequences not yet ended, and whom to wake.

    Tokens that wait are joined, so that a slow reader gets larger pieces, not more of them. held: bytes that they take, about; `full` is
    called whenever more than `max_bytes` wait.
    """

    id: str
    epoch: int
    open: set[int]
    events: list[SequenceEvent] = field(default_factory=list)
    waiting: dict[int, Tokens] = field(default_factory=dict)  # of each sequence, the last tokens in `events`
    held: int = 0
    max_bytes: int = sys.maxsize
    wake: Callable[[Account], None] = lambda account: None
    full: Callable[[], None] = lambda: None

    def add(self, event: SequenceEvent) -> None:
        """It has arrived. The order within each sequence is kept."""
        if not isinstance(event, Tokens):
            self.events.append(event)
            return
        entries = event.logprobs
        each = ID_BYTES if entries is None else ID_BYTES + ENTRY_BYTES + RIVAL_BYTES * len(entries[0].top_ids)
        self.held += len(event.token_ids) * each
        before = self.waiting.get(event.index)
        if before is None:
            self.waiting[event.index] = event
            self.events.append(event)
            return
        before.token_ids.extend(event.token_ids)
        if before.logprobs is not None:
            before.logprobs.extend(entries or ())
        before.drafts.extend(event.drafts)

    def rouse(self) -> None:
        """Something has arrived."""
        self.wake(self)
        if self.held > self.max_bytes:
            self.full()

    def take(self) -> list[SequenceEvent]:
        """Everything that arrived since the last time."""
        events, self.events = self.events, []
        self.waiting.clear()
        self.held = 0
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
        self.between: Callable[[Ask | Asked | Answer], None] = lambda message: None  # what other front ends say

    def open(
        self,
        prompt: list[int],
        params: SamplingParams,
        id: str | None,
        priority: int,
        arrival_s: float,
        adapter: str = "",
    ) -> tuple[Account, Submit]:
        """A new stream and the message that asks for it."""
        account = Account(id or uuid4().hex, next(self.epochs), set(range(params.n)))
        self.accounts[account.id, account.epoch] = account
        return account, Submit(account.id, account.epoch, prompt, params, priority, arrival_s, adapter)

    def close(self, account: Account, keep: bool = False) -> bool:
        """Forget the stream, and, unless it is to `keep` it, what has not been fetched. True if sequences were still open, so that the
        engine must be told."""
        name = (account.id, account.epoch)
        if self.accounts.pop(name, None) is None or not account.open:
            return False
        account.open.clear()
        if not keep:
            account.take()
        account.wake(account)
        self.unacknowledged.add(name)
        return True

    def close_sequence(self, account: Account, index: int) -> bool:
        """Nothing more of this sequence is wanted; True if it was still open, so that the engine must be told."""
        if index not in account.open:
            return False
        account.open.discard(index)
        self.stopped.add((account.id, account.epoch, index))
        account.events = [event for event in account.events if event.index != index]
        account.waiting.pop(index, None)
        account.wake(account)
        return True

    def deliver(self, messages: Iterable[FromEngine]) -> None:
        """Route what the engine said, and wake whom it concerns."""
        for account in self.route(messages):
            account.rouse()

    def route(self, messages: Iterable[FromEngine]) -> list[Account]:
        """Put what the engine said where it belongs; the accounts that have something new, for the caller to rouse."""
        woken: dict[Account, None] = {}
        for message in messages:
            match message:
                case Tokens() | Finished() | Failed():  # first, because nearly all are tokens
                    account = self.accounts.get((message.id, message.epoch))
                    if account is None or message.index not in account.open:
                        if isinstance(message, Tokens) and (message.id, message.epoch, message.index) in self.stopped:
                            self.wasted += len(message.token_ids)
                        continue
                    account.add(message)
                    if not isinstance(message, Tokens):
                        account.open.discard(message.index)
                    woken[account] = None
                case PromptLogprobs():
                    account = self.accounts.get((message.id, message.epoch))
                    if account is not None:
                        account.add(message)
                        woken[account] = None
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
                case Ask() | Asked() | Answer():
                    self.between(message)
        return list(woken)

    def fail_all(self, error: TailraceError) -> None:
        """The engine is gone: every sequence that is still open ends with Failed."""
        for account in list(self.accounts.values()):
            for index in sorted(account.open):
                account.events.append(Failed(account.id, account.epoch, index, error.code, str(error)))
            account.open.clear()
            account.wake(account)
        self.unacknowledged.clear()
        self.stopped.clear()
        self.stats = Stats()
