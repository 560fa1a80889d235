"""What the three clients' streams have in common: whose events they give, and that one which nobody reads any more is aborted."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

from tailrace.wire.ledger import Account, Ledger
from tailrace.wire.messages import Abort


class Stream:
    """One request's events. It is aborted when it is closed, when `with` or an iteration ends early, and when nobody holds it any more.

    Args:
        cancel: tells the engine. abandon: the same for a stream that was collected, which may be on any thread and at any moment;
            left out where `cancel` may be called like that too.

    Attributes:
        id, epoch: the request's name.
    """

    def __init__(
        self,
        account: Account,
        ledger: Ledger,
        cancel: Callable[[Abort], None],
        abandon: Callable[[Abort], None] | None = None,
    ) -> None:
        self._account, self._ledger, self._cancel = account, ledger, cancel
        self.id, self.epoch = account.id, account.epoch
        collected = weakref.finalize(self, _abort, account, ledger, abandon or cancel, "collected", False)
        collected.atexit = False  # the engine's process ends with ours

    def abort(self, cause: str = "client", keep: bool = False) -> None:
        """End it; nothing more is delivered but, with `keep`, what has arrived. Idempotent."""
        _abort(self._account, self._ledger, self._cancel, cause, keep)

    def abort_sequence(self, index: int, cause: str = "stop string") -> bool:
        """End one sequence; the others go on. Idempotent. False if it had ended already."""
        open_ = self._ledger.close_sequence(self._account, index)
        if open_:
            self._cancel(Abort(self.id, self.epoch, cause, index))
        return open_

    def close(self) -> None:
        """Abort it, unless it has ended. Idempotent."""
        self.abort("closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.abort()


def _abort(account: Account, ledger: Ledger, cancel: Callable[[Abort], None], cause: str, keep: bool) -> None:
    """Holds no stream, or none would ever be collected."""
    if ledger.close(account, keep):
        cancel(Abort(account.id, account.epoch, cause))
