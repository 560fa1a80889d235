"""How late the event loop is: whatever keeps it from its next task keeps every stream waiting."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.api.metrics import Gaps

EVERY_S = 0.02  # what takes less may be missed; so often costs a thousandth of a core


async def watch_lag(lag: Gaps) -> None:
    """Note, until cancelled, how much later than asked a timer fires."""
    while True:
        asked_s = time.perf_counter() + EVERY_S
        await asyncio.sleep(EVERY_S)
        lag.observe(max(0.0, time.perf_counter() - asked_s))
