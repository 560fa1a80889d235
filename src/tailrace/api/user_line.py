"""How many requests of one user the front end prepares at once. The user's other requests wait in order of arrival and
take no turns of the event loop, so another user's request passes them (decision 0124).

A request has a place from the end of its body to its generation: whatever the client is slow with takes no place. A
request that waits for something else than the event loop (a template, a file) gives the place back after HOLD_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.api.disconnect import unless_disconnected
from tailrace.api.route_costs import Cost, find_cost
from tailrace.api.user import user_of
from tailrace.base.fair_line import FairLine

PLACE = "tailrace.place"  # where the ASGI scope has the PreparationPlace
PLACES = 4  # of one user: enough to keep the event loop busy, and the threads and processes beside it
HOLD_S = 0.05  # after which a request that is still being prepared gives its place back
LATE_S = 0.01  # a timer that fires so late says that the request may have waited for the event loop
MAX_HOLDS = 4  # in a row, while the event loop is late


class PreparationPlace:
    """One user's place. It is given back once, by whoever calls `leave` first.

    Args:
        on_left: called when the place is given back.
    """

    def __init__(self, on_left: Callable[[], None]) -> None:
        self._on_left, self._holds = on_left, 0
        self._hold()

    def leave(self) -> None:
        """Give the place back. Idempotent."""
        if not self._timer.cancelled():
            self._timer.cancel()
            self._on_left()

    def _hold(self) -> None:
        self._holds += 1
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self._on_timer)

    def _on_timer(self) -> None:
        late = asyncio.get_running_loop().time() - self._timer.when() > LATE_S
        if late and self._holds < MAX_HOLDS:
            self._hold()
        else:
            self.leave()


class UserLine:
    """The middleware that lets at most PLACES requests of each user be prepared at once. Requests that cost nothing
    (route_costs.py) never wait.

    Args:
        observe_wait: called with the user and the seconds that a request has waited for its place.
    """

    def __init__(self, app: ASGIApp, observe_wait: Callable[[str, float], None] = lambda user, wait_s: None) -> None:
        self._app, self._observe_wait = app, observe_wait
        self._line: FairLine[asyncio.Future[None]] = FairLine(PLACES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or find_cost(scope["method"], scope["path"]) is Cost.FREE:
            return await self._app(scope, receive, send)
        user, ended = user_of(scope), False

        async def receive_in_turn() -> Message:
            nonlocal ended
            message = await receive()
            if not ended and message["type"] == "http.request" and not message.get("more_body", False):
                ended = True
                await self._take_place(user, receive)
                scope[PLACE] = PreparationPlace(lambda: self._free_place(user))
            return message

        try:
            await self._app(scope, receive_in_turn, send)
        finally:
            leave_place(scope)

    async def _take_place(self, user: str, receive: Receive) -> None:
        """Wait for a place. A client that leaves has waited too.

        Raises:
            ClientDisconnect: the client has left.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.add(user, turn)
        self._give_places()
        if turn.done():
            return self._observe_wait(user, 0.0)
        begun_s = asyncio.get_running_loop().time()
        try:
            await unless_disconnected(receive, turn, lambda: None)
        except BaseException:
            if not turn.cancelled():  # it got the place in the same turn of the loop
                self._free_place(user)
            raise
        finally:
            self._observe_wait(user, asyncio.get_running_loop().time() - begun_s)

    def _free_place(self, user: str) -> None:
        """Take a place of the user back."""
        self._line.finish(user, 0.0)
        self._give_places()

    def _give_places(self) -> None:
        """Give each free place to the next request that waits for one."""
        while (taken := self._line.take()) is not None:
            user, turn = taken
            if turn.done():  # its client has left
                self._line.finish(user, 0.0)
            else:
                turn.set_result(None)


def leave_place(scope: Scope) -> None:
    """Give back the place of a request that has been prepared, if it has one."""
    if (place := scope.get(PLACE)) is not None:
        place.leave()
