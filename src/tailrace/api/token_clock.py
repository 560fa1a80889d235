"""When the tokens of one prompt's sequences came. The metrics and the record of the request get the times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.api.request_record import RequestRecord

if TYPE_CHECKING:
    from tailrace.api.service import Service


class TokenClock:
    """Time to first token and inter-token latency of one prompt's sequences."""

    def __init__(self, service: Service, arrival_s: float, record: RequestRecord) -> None:
        self._metrics = service.metrics
        self._arrival_s, self._record = arrival_s, record
        self._last_s: dict[int, float] = {}  # per sequence

    def observe_queue_time(self, queued_s: float) -> None:
        """Store the seconds that the prompt waited for a slot. They are counted with the first token."""
        if not self._last_s:
            self._metrics.queue_time.observe(queued_s)

    def observe_tokens(self, index: int, num_tokens: int) -> None:
        """`num_tokens` tokens of sequence `index` have just come."""
        now_s = time.perf_counter()
        if not self._last_s:
            self._metrics.time_to_first_token.observe(now_s - self._arrival_s)
            self._record.first_token()
        last_s = self._last_s.get(index)
        if last_s is not None:
            self._metrics.inter_token_latency.observe((now_s - last_s) / num_tokens, num_tokens)
        self._last_s[index] = now_s
