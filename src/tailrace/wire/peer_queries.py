"""What one front end has asked the others, and their answers. Pure: no I/O."""

from __future__ import annotations

import asyncio

from tailrace.wire.messages import PeerCount, PeerReply


class PendingQuery:
    """A question to the other front ends, and what they have answered so far."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.complete = asyncio.Event()
        self._asked: int | None = None  # front ends; None until it is known
        self._replies = 0

    def add(self, message: PeerCount | PeerReply) -> None:
        """How many front ends were asked, or the reply of one."""
        if isinstance(message, PeerCount):
            self._asked = message.count
        else:
            self._replies += 1
            if message.data is not None:
                self.answers.append(message.data)
        if self._replies == self._asked:
            self.complete.set()
