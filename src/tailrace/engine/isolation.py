"""Keeps errors to one request: an exception of one request's work is caught and returned as an error of that
request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from tailrace.errors import EngineError, TailraceError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Isolated:
    """A context manager that catches everything but interrupts, also a library's panic, which is no Exception.

    error: what was raised inside, once the block is left; None if nothing was.

    Args:
        what: the message for an error that is not a TailraceError. id: the request's.
    """

    def __init__(self, what: str, id: str) -> None:
        self.error: TailraceError | None = None
        self._what, self._id = what, id

    def __enter__(self) -> Isolated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        if isinstance(error, TailraceError):
            self.error = error
        else:
            log.error("request %s: %s", self._id, self._what, exc_info=error)
            self.error = EngineError(f"{self._what}: {type(error).__name__}: {error}")
        return True


def call_or_default(work: Callable[[], T], otherwise: T) -> T:
    """Return the result of `work`, or `otherwise` if it raises. Use it for drafts only: the code that later does the
    same work for real reports the error."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return otherwise
