"""How often a stream gives what has come: so many tokens at a time, or so long after the last time."""

from __future__ import annotations

import time

from tailrace.wire.stream_table import OpenStream


class Interval:
    """What there is to be given at all; `given` when it was.

    Args:
        tokens: of one sequence, that are given together. seconds: after which less is given too; with one token it alone decides. 0: the
            number alone does. A sequence's first tokens never wait, nor does its end.
    """

    def __init__(self, tokens: int = 1, seconds: float = 0.0) -> None:
        self.tokens, self.seconds = tokens, seconds
        self._begun: set[int] = set()
        self._last_s = 0.0

    @property
    def left_s(self) -> float:
        """Until it is time again."""
        return max(0.0, self._last_s + self.seconds - time.monotonic())

    def due(self, open_stream: OpenStream) -> bool:
        """What waits may be given now."""
        waiting = open_stream.waiting
        if not open_stream.open or len(waiting) < len(open_stream.events):  # there is more than tokens
            return True
        if self.seconds and waiting and not self.left_s:
            return True
        enough = self.tokens if self.tokens > 1 or not self.seconds else None
        return any(
            index not in self._begun or (enough is not None and len(tokens.token_ids) >= enough)
            for index, tokens in waiting.items()
        )

    def given(self, open_stream: OpenStream) -> None:
        """What waits will be."""
        self._begun.update(open_stream.waiting)
        self._last_s = time.monotonic()
