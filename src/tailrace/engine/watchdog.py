"""Logs what the engine does when a turn of its loop takes too long: the part of the step, its requests, and the place
in the code.

It runs on a thread of its own. If a call holds the interpreter, that thread can't run. Then faulthandler's thread,
which does not need the interpreter, writes all stacks.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from tailrace.wire.pulse import Pulse

log = logging.getLogger(__name__)

LOOKS = 8  # checks per time limit
SHOWN = 32  # the most requests named


class Watchdog:
    """Watches the thread that makes it, until that thread ends.

    Args:
        names: returns the requests in the step; called from another thread.
    """

    def __init__(self, pulse: Pulse, limit_s: float, names: Callable[[], Sequence[str]]) -> None:
        self._pulse, self._limit_s, self._names = pulse, limit_s, names
        self._watched = threading.get_ident()
        if limit_s:
            threading.Thread(target=self._watch_pulse, daemon=True, name="watchdog").start()

    def _watch_pulse(self) -> None:
        told = False
        while True:
            # It goes off unless this thread returns here in time.
            faulthandler.dump_traceback_later(self._limit_s + 2 * self._limit_s / LOOKS)
            time.sleep(self._limit_s / LOOKS)
            stall = self._pulse.stall()
            if stall is not None and not told:
                text = "step %d has taken %.1f s so far; in part %s; requests: %s"
                values = (stall.step, stall.seconds, stall.part, self._list_requests())
                stack = self._format_stack()
                log.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, text, values, None, sinfo=stack))
            told = stall is not None

    def _list_requests(self) -> str:
        try:
            names = list(self._names())
        except RuntimeError:  # they change while they are read
            return "not known"
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return (", ".join(names[:SHOWN]) or "none") + more

    def _format_stack(self) -> str:
        frame = sys._current_frames().get(self._watched)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()
