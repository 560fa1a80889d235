"""The places of requests in the waiting line: a user's ranks exchange places of the user's own requests."""

from __future__ import annotations

from bisect import bisect_left

from tailrace.engine.sequence import Request, Sequence, make_sort_key


def exchange_places(waiting: list[Sequence], new: Request) -> None:
    """Move a new request to the first place of its user's waiting requests with a larger rank. Each of them moves to
    the place of the next one, the last one to the place of the new request.

    The places of other users' requests do not change. Requests that have run keep their places too. A request moves
    before another user's request only in exchange with one that may cost as much, so the others do not wait longer.
    """
    place = bisect_left(waiting, make_sort_key(new.sequences[0]), key=make_sort_key)
    passed = False  # Another user's request is between the two places.
    for before in range(place - 1, -1, -1):
        other = waiting[before].request
        if other.order[0] != new.order[0]:
            return
        if other.owner.user != new.owner.user:
            passed = True
            continue
        if other.queued_s is not None:
            continue
        if other.owner.rank <= new.owner.rank or (passed and other.most_tokens < new.most_tokens):
            return
        passed = False
        other.order, new.order = new.order, other.order
        waiting[before], waiting[place] = waiting[place], waiting[before]
        place = before
