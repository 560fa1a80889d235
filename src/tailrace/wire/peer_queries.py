"""One front end's questions to the others, and its answers to theirs. This module does no I/O of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import count

from tailrace.wire.messages import PeerCount, PeerQuery, PeerReply


class PendingQuery:
    """A question to the other front ends, and their answers so far."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.complete = asyncio.Event()
        self._asked: int | None = None  # front ends; None until it is known
        self._replies = 0

    def add(self, message: PeerCount | PeerReply) -> None:
        """Take the number of front ends that were asked, or the reply of one."""
        if isinstance(message, PeerCount):
            self._asked = message.count
        else:
            self._replies += 1
            if message.data is not None:
                self.answers.append(message.data)
        if self._replies == self._asked:
            self.complete.set()


class PeerQueries:
    """The questions of a front end that are open.

    Args:
        send: sends a message to the engine, which passes it on.

    Attributes:
        answer: returns this front end's answer to a question and its argument; None if it has none.
    """

    def __init__(self, send: Callable[[PeerQuery | PeerReply], object]) -> None:
        self._send = send
        self._pending: dict[int, PendingQuery] = {}
        self._numbers = count(1)
        self.answer: Callable[[str, str], bytes | None] = lambda question, argument: None

    async def ask(self, question: str, argument: str, timeout_s: float) -> list[bytes]:
        """Return the answers that come within the time."""
        number = next(self._numbers)
        query = self._pending[number] = PendingQuery()
        self._send(PeerQuery(number, question, argument))
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(query.complete.wait(), timeout_s)
        finally:
            del self._pending[number]
        return query.answers

    def on_message(self, message: PeerQuery | PeerCount | PeerReply) -> None:
        """Answer another front end's question, or take its answer."""
        if isinstance(message, PeerQuery):
            self._send(PeerReply(message.asker, message.number, self.answer(message.question, message.argument)))
        elif (query := self._pending.get(message.number)) is not None:
            query.add(message)
