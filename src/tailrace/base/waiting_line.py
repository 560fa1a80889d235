"""Who may still wait if many requests wait: for the engine's slots, or for an engine that is being loaded."""

from __future__ import annotations

from tailrace.errors import OverloadedError


def check_line(most: int, total: int, own: int, weight: int, others: int) -> None:
    """Check that one more request of a user may wait. `most` requests may wait.

    Beyond `most` a user may still have a part of the places, by weight, and one at least, so a full line is full for
    those alone who fill it. No request that waits already is refused for another one.

    Args:
        total, own: waiting requests of all users, and of this one. weight: the user's. others: the sum of the other
            waiting users' weights.

    Raises:
        OverloadedError: no place is left for the user.
    """
    if total >= most and own >= max(min(1, most), most * weight // (others + weight)):
        whose = f", {own} of them of this user" if others else ""
        raise OverloadedError(f"{total} requests are waiting{whose}; try again later")
