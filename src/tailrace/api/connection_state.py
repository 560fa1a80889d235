"""What a connection does next, by what has happened on it. Knows no socket, no parser and no clock.

Events go in, actions come out. A connection that is kept alive goes round: NEW → HEAD → BODY → ANSWER → IDLE → HEAD.
After a request that allows no other (LAST), or one that is refused (FAULTY, LINGER), nothing more is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from tailrace.api.request_head import RefusedError
from tailrace.config import ServerConfig

LINGER_S = 2.0  # time for a refused client to read the error; what the client still sends is dropped


class State(Enum):
    """What a connection waits for."""

    NEW = "the first byte"
    IDLE = "the next request"
    HEAD = "the end of a head"
    BODY = "the end of the body of the request that is being answered"
    ANSWER = "an answer; more requests may come meanwhile"
    LAST = "answers; nothing more is read"
    FAULTY = "answers; what came behind those requests is refused then"
    LINGER = "the client, which has an error to read"
    CLOSED = "what was written to go out"


class Happened(Enum):
    """What happens on a connection."""

    PART = "some of a head has come"
    HEAD = "a head has come to its end"
    END = "a request has come to its end"
    END_OF_LAST = "the same, and the client sends no other"
    BAD = "what comes is refused"
    EOF = "the client has closed its side"
    ANSWERED = "an answer has gone out, and no request waits"
    NEXT_PART = "an answer has gone out, and the next request is served while its body comes"
    HANG_UP = "the present answer is to be the last"
    TIMEOUT = "the time to wait is over"
    FULL = "there is no room for the connection"
    DROP = "another connection needs the room"
    SHUTDOWN = "the server ends"


class Action(Enum):
    """What is to be done, in this order."""

    ABANDON = "stop the requests: nobody waits for their answers"
    FORGET_PART = "forget the requests that will never be complete"
    FINISH = "forget the requests that wait; the present answer is the last"
    REFUSE = "send the error, unless an answer has begun"
    SHUT = "end the own side, and throw away what comes"
    CLOSE = "close when what was written has gone out"


Step = tuple[State, tuple[Action, ...]]

CLOSE: Step = (State.CLOSED, (Action.CLOSE,))
REFUSE: Step = (State.LINGER, (Action.REFUSE, Action.SHUT))
ABORT: Step = (State.LINGER, (Action.ABANDON, Action.REFUSE, Action.SHUT))
CUT: Step = (State.CLOSED, (Action.ABANDON, Action.REFUSE, Action.CLOSE))
GONE: Step = (State.CLOSED, (Action.ABANDON, Action.CLOSE))
FINISH: Step = (State.LAST, (Action.FINISH,))

_BETWEEN: dict[Happened, Step] = {
    Happened.PART: (State.HEAD, ()),
    Happened.HEAD: (State.BODY, ()),
    Happened.BAD: REFUSE,
    **dict.fromkeys(
        (
            Happened.EOF,
            Happened.HANG_UP,
            Happened.TIMEOUT,
            Happened.DROP,
            Happened.SHUTDOWN,
        ),
        CLOSE,
    ),
}
_ANSWERING: dict[Happened, Step] = {
    Happened.EOF: GONE,
    Happened.HANG_UP: CLOSE,
    Happened.DROP: CUT,
    Happened.SHUTDOWN: FINISH,
}
# An event that a state does not name changes nothing.
TRANSITIONS: dict[State, dict[Happened, Step]] = {
    State.NEW: _BETWEEN | {Happened.FULL: (State.CLOSED, (Action.REFUSE, Action.CLOSE))},
    State.IDLE: _BETWEEN,
    State.HEAD: _BETWEEN | {Happened.EOF: (State.CLOSED, (Action.REFUSE, Action.CLOSE)), Happened.TIMEOUT: REFUSE},
    State.BODY: {
        Happened.END: (State.ANSWER, ()),
        Happened.END_OF_LAST: (State.LAST, ()),
        Happened.BAD: ABORT,
        Happened.EOF: CUT,
        Happened.TIMEOUT: ABORT,
        Happened.HANG_UP: (State.LINGER, (Action.SHUT,)),
        Happened.DROP: CUT,
        Happened.SHUTDOWN: (State.BODY, (Action.FINISH,)),
    },
    State.ANSWER: _ANSWERING
    | {
        Happened.END_OF_LAST: (State.LAST, ()),
        Happened.BAD: (State.FAULTY, (Action.FORGET_PART,)),
        Happened.ANSWERED: (State.IDLE, ()),
        Happened.NEXT_PART: (State.BODY, ()),
    },
    State.LAST: _ANSWERING | {Happened.ANSWERED: CLOSE},
    State.FAULTY: _ANSWERING | {Happened.ANSWERED: REFUSE},
    State.LINGER: dict.fromkeys((Happened.EOF, Happened.TIMEOUT, Happened.DROP, Happened.SHUTDOWN), CLOSE),
    State.CLOSED: {},
}
READS = frozenset({State.NEW, State.IDLE, State.HEAD, State.BODY, State.ANSWER})  # elsewhere bytes are thrown away
ENDING = frozenset({State.LINGER, State.CLOSED})
INCOMPLETE = frozenset({State.NEW, State.IDLE, State.HEAD, State.BODY})  # another connection may take their place


class Wait(NamedTuple):
    """What a timer waits for, and how long. The time goes on while the connection changes between states of one
    `what`."""

    what: str
    limit_s: float


def list_waits(limits: ServerConfig) -> dict[State, Wait]:
    """Return how long each state may last. A state that is not there has no limit."""
    head = Wait("head", limits.header_timeout_s)
    return {
        State.NEW: head,
        State.IDLE: Wait("idle", limits.idle_timeout_s),
        State.HEAD: head,
        State.BODY: Wait("body", limits.body_timeout_s),
        State.LINGER: Wait("linger", LINGER_S),
        State.CLOSED: Wait("flush", limits.idle_timeout_s),
    }


class ConnectionState:
    """The state of one connection.

    Args:
        waits: see list_waits.

    Attributes:
        refusal: what REFUSE sends.
    """

    def __init__(self, waits: Mapping[State, Wait]) -> None:
        self.state = State.NEW
        self.refusal: RefusedError | None = None
        self._waits = waits

    @property
    def wait(self) -> Wait | None:
        """How long the state may last; None: without a limit."""
        return self._waits.get(self.state)

    def handle(self, event: Happened, refusal: RefusedError | None = None) -> tuple[Action, ...]:
        """Take the event. Return the actions.

        Args:
            refusal: of BAD, FULL and DROP.
        """
        step = TRANSITIONS[self.state].get(event)
        if step is None:
            return ()
        if event is Happened.EOF:
            refusal = RefusedError(400, "the connection ended before the request was complete")
        elif event is Happened.TIMEOUT:
            refusal = self._late()
        self.refusal = refusal or self.refusal
        self.state, actions = step
        return actions

    def _late(self) -> RefusedError | None:
        part, wait = {State.HEAD: "headers", State.BODY: "body"}.get(self.state), self.wait
        if part is None or wait is None:
            return None
        return RefusedError(408, f"the request's {part} took longer than {wait.limit_s:g} s to come")
