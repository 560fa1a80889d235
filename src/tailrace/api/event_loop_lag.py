"""How late the event loop is. Whatever keeps the loop from its next task keeps every stream waiting."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.api.histogram import FastHistogram

LAG_INTERVAL_S = 0.02  # shorter delays may be missed; this often costs a thousandth of a core


async def observe_event_loop_lag(lag: FastHistogram) -> None:
    """Record how late a timer fires, again and again, until cancelled."""
    while True:
        asked_s = time.perf_counter() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        lag.observe(max(0.0, time.perf_counter() - asked_s))
