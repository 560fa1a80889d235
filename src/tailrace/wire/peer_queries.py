"""One front end's questions to the others, and their answers. This module does no I/O."""

from __future__ import annotations

import asyncio

from tailrace.wire.messages import PeerCount, PeerReply


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
