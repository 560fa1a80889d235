"""How often a stream delivers its tokens: a number at a time, or some seconds after the last delivery."""

from __future__ import annotations

import time

from tailrace.wire.stream_table import OpenStream


class Interval:
    """Decides when the waiting tokens are delivered. Call `record_delivery` after each delivery.

    Args:
        tokens: of one sequence, delivered together.
        seconds: after this time fewer tokens are delivered too; 0: never. With one token, the seconds alone decide. The
            first tokens of a sequence never wait, nor does its end.
    """

    def __init__(self, tokens: int = 1, seconds: float = 0.0) -> None:
        self.tokens, self.seconds = tokens, seconds
        self._begun: set[int] = set()
        self._last_s = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the next delivery."""
        return max(0.0, self._last_s + self.seconds - time.monotonic())

    def is_due(self, open_stream: OpenStream) -> bool:
        """Return whether the waiting events may be delivered now."""
        waiting = open_stream.waiting
        if not open_stream.open or len(waiting) < len(open_stream.events):  # there are other events than tokens
            return True
        if self.seconds and waiting and not self.left_s:
            return True
        enough = self.tokens if self.tokens > 1 or not self.seconds else None
        return any(
            index not in self._begun or (enough is not None and len(tokens.token_ids) >= enough)
            for index, tokens in waiting.items()
        )

    def record_delivery(self, open_stream: OpenStream) -> None:
        """Note that the waiting events are being delivered."""
        self._begun.update(open_stream.waiting)
        self._last_s = time.monotonic()
