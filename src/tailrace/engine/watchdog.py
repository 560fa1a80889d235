"""Says in the log what the engine does when a turn of its loop takes too long: which part of the step, whose, and where
in the code.

On a thread of its own. Where a call holds the interpreter that thread can't run; then faulthandler's, which needs none,
writes all stacks.
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

LOOKS = 8  # within the limit
SHOWN = 32  # requests named


class Watchdog:
    """Watches the thread that makes it, until that ends.

    Args:
        names: of the requests in the step, asked from another thread.
    """

    def __init__(self, pulse: Pulse, limit_s: float, names: Callable[[], Sequence[str]]) -> None:
        self._pulse, self._limit_s, self._names = pulse, limit_s, names
        self._watched = threading.get_ident()
        if limit_s:
            threading.Thread(target=self._run, daemon=True, name="watchdog").start()

    def _run(self) -> None:
        told = False
        while True:
            # it goes off unless this thread comes by in time
            faulthandler.dump_traceback_later(self._limit_s + 2 * self._limit_s / LOOKS)
            time.sleep(self._limit_s / LOOKS)
            stall = self._pulse.stall()
            if stall is not None and not told:
                log.error(
                    "step %d has taken %.1f s so far; in part %s; requests: %s\n%s",
                    stall.step,
                    stall.seconds,
                    stall.part,
                    self._requests(),
                    self._stack(),
                )
            told = stall is not None

    def _requests(self) -> str:
        try:
            names = list(self._names())
        except RuntimeError:  # they change while they are read
            return "not known"
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return (", ".join(names[:SHOWN]) or "none") + more

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()
