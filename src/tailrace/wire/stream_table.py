"""The open streams of a client, and the stream of each message. The three clients share it. It does no I/O and reads no
clock.

A stream is named (id, epoch). Epochs count up, so a reused id never meets an old output. Messages for a stream that is
not open (any more) are dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from uuid import uuid4

from tailrace.errors import TailraceError
from tailrace.explain.record import Explanation
from tailrace.params import SamplingParams
from tailrace.wire.messages import (
    NOBODY,
    Aborted,
    Drained,
    Failed,
    Finished,
    FromEngine,
    ModelInfo,
    Owner,
    PeerCount,
    PeerQuery,
    PeerReply,
    PromptLogprobs,
    PromptProgress,
    Ready,
    Replay,
    Replayed,
    SequenceEvent,
    Stats,
    Submit,
    Tokens,
)

# About the memory of unread tokens, in bytes: of an id in a list, of its logprobs, of each alternative in them, and of
# each token that an explanation shows, per step.
ID_BYTES, ENTRY_BYTES, ALTERNATIVE_BYTES, SHOWN_BYTES = 40, 200, 70, 32


@dataclass(eq=False, slots=True)
class OpenStream:
    """One open stream: the message that asks for it, its unread events, its sequences that have not ended, and the
    callbacks of its reader.

    Waiting tokens are joined, so that a slow reader gets larger pieces, not more of them. held: the approximate bytes
    that they take. `full` is called whenever more than `max_bytes` wait.
    """

    id: str
    epoch: int
    open: set[int]
    message: Submit
    events: list[SequenceEvent] = field(default_factory=list)
    waiting: dict[int, Tokens] = field(default_factory=dict)  # of each sequence, the last tokens in `events`
    held: int = 0
    max_bytes: int = sys.maxsize
    wake: Callable[[OpenStream], None] = lambda open_stream: None
    full: Callable[[], None] = lambda: None

    def add(self, event: SequenceEvent) -> None:
        """Add an event that has arrived. The order within each sequence is kept."""
        if not isinstance(event, Tokens):
            if isinstance(event, Replayed):
                self.held += sum(map(record_bytes, event.records))
            self.events.append(event)
            return
        entries = event.logprobs
        each = ID_BYTES if entries is None else ID_BYTES + ENTRY_BYTES + ALTERNATIVE_BYTES * len(entries[0].top_ids)
        self.held += len(event.token_ids) * each + sum(map(record_bytes, event.explanations or ()))
        self.held += sum(map(len, event.survivors or ()))
        before = self.waiting.get(event.index)
        if before is None:
            self.waiting[event.index] = event
            self.events.append(event)
            return
        before.token_ids.extend(event.token_ids)
        if before.logprobs is not None:
            before.logprobs.extend(entries or ())
        if before.explanations is not None:
            before.explanations.extend(event.explanations or ())
        if before.survivors is not None:
            before.survivors.extend(event.survivors or ())
        before.drafts.extend(event.drafts)

    def notify_reader(self) -> None:
        """Wake the reader, because events have arrived."""
        self.wake(self)
        if self.held > self.max_bytes:
            self.full()

    def take(self) -> list[SequenceEvent]:
        """Return all events since the last call."""
        events, self.events = self.events, []
        self.waiting.clear()
        self.held = 0
        return events


class StreamTable:
    """Open streams, unacknowledged aborts, and the engine's latest report on itself."""

    def __init__(self) -> None:
        self.open_streams: dict[tuple[str, int], OpenStream] = {}
        self.unacknowledged: set[tuple[str, int]] = set()
        self.stopped: set[tuple[str, int, int]] = set()  # sequences that ended here before the engine knew of it
        self.wasted = 0  # tokens that were sampled for them nevertheless
        self.epochs = count(1)
        self.model: ModelInfo | None = None
        self.version: int | None = None
        self.stats = Stats()
        self.drained: Drained | None = None
        self.on_peer_message: Callable[[PeerQuery | PeerCount | PeerReply], None] = ignore_peer

    @property
    def waiting(self) -> list[OpenStream]:
        """The streams that have not ended: of an engine that sleeps, those of requests that no engine has read."""
        return [open_stream for open_stream in self.open_streams.values() if open_stream.open]

    def add_stream(
        self,
        prompt: list[int],
        params: SamplingParams,
        id: str | None,
        priority: int,
        arrival_s: float,
        adapter: str = "",
        replay: Replay | None = None,
        owner: Owner = NOBODY,
        reports_progress: bool = False,
    ) -> tuple[OpenStream, Submit]:
        """Return a new stream and the message that asks for it. (More than six parameters: those of a Submit.)"""
        name = id or uuid4().hex, next(self.epochs)
        message = Submit(*name, prompt, params, priority, arrival_s, adapter, replay, owner, reports_progress)
        open_stream = self.open_streams[name] = OpenStream(*name, set(range(params.n)), message)
        return open_stream, message

    def close(self, open_stream: OpenStream, keep: bool = False) -> bool:
        """Close the stream; without `keep`, its unread events are dropped. Return True if sequences were still open, so
        that the engine must abort them."""
        name = (open_stream.id, open_stream.epoch)
        if self.open_streams.pop(name, None) is None or not open_stream.open:
            return False
        open_stream.open.clear()
        if not keep:
            open_stream.take()
        open_stream.wake(open_stream)
        self.unacknowledged.add(name)
        return True

    def close_sequence(self, open_stream: OpenStream, index: int) -> bool:
        """Close one sequence. Return True if it was still open, so that the engine must abort it."""
        if index not in open_stream.open:
            return False
        open_stream.open.discard(index)
        self.stopped.add((open_stream.id, open_stream.epoch, index))
        open_stream.events = [event for event in open_stream.events if event.index != index]
        open_stream.waiting.pop(index, None)
        open_stream.wake(open_stream)
        return True

    def deliver_messages(self, messages: Iterable[FromEngine]) -> None:
        """Route messages of the engine and wake the readers."""
        for open_stream in self.route_messages(messages):
            open_stream.notify_reader()

    def route_messages(self, messages: Iterable[FromEngine]) -> list[OpenStream]:
        """Route messages of the engine. Returns the streams that have new events, which the caller must notify."""
        woken: dict[OpenStream, None] = {}
        for message in messages:
            match message:
                case Tokens() | Finished() | Failed():  # first, because nearly all are tokens
                    open_stream = self.open_streams.get((message.id, message.epoch))
                    if open_stream is None or message.index not in open_stream.open:
                        if isinstance(message, Tokens) and (message.id, message.epoch, message.index) in self.stopped:
                            self.wasted += len(message.token_ids)
                        continue
                    open_stream.add(message)
                    if not isinstance(message, Tokens):
                        open_stream.open.discard(message.index)
                    woken[open_stream] = None
                case PromptProgress() | PromptLogprobs() | Replayed():
                    open_stream = self.open_streams.get((message.id, message.epoch))
                    if open_stream is not None:
                        open_stream.add(message)
                        woken[open_stream] = None
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
                    self.drained = message
                case PeerQuery() | PeerCount() | PeerReply():
                    self.on_peer_message(message)
        return list(woken)

    def fail_all(self, error: TailraceError) -> None:
        """End every open sequence with Failed: the engine is gone."""
        for open_stream in list(self.open_streams.values()):
            for index in sorted(open_stream.open):
                open_stream.events.append(Failed(open_stream.id, open_stream.epoch, index, error.code, str(error)))
            open_stream.open.clear()
            open_stream.wake(open_stream)
        self.forget_engine()

    def forget_engine(self) -> None:
        """Expect nothing more of this engine; open streams stay."""
        self.unacknowledged.clear()
        self.stopped.clear()
        self.stats = Stats()


def record_bytes(record: Explanation) -> int:
    """Return about how much memory a record takes, in bytes."""
    steps = len(record.edits) + len(record.refinements)
    return ENTRY_BYTES * (4 + steps) + SHOWN_BYTES * len(record.ids) * (8 + steps)


def ignore_peer(message: PeerQuery | PeerCount | PeerReply) -> None:
    """Do nothing; for clients without other front ends."""
