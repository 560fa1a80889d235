"""The states of a connection: every state with every event, without a socket; and what the reader makes of bytes."""

from __future__ import annotations

import itertools

import pytest

from tailrace.api.connection_state import (
    ENDING,
    INCOMPLETE,
    LINGER_S,
    READS,
    TRANSITIONS,
    Action,
    ConnectionState,
    Happened,
    State,
    list_waits,
)
from tailrace.api.request_head import RefusedError
from tailrace.api.request_reader import PIECE, RequestHead, RequestReader
from tailrace.config import ServerConfig

LIMITS = ServerConfig(header_timeout_s=1, body_timeout_s=2, idle_timeout_s=3)
BAD = RefusedError(400, "bad")

# The next state, and the actions by their first letters (r: REFUSE, s: SHUT, c: CLOSE, a: ABANDON, f: FINISH,
# p: FORGET_PART). A dot: nothing changes.
MATRIX = """
              NEW         IDLE        HEAD        BODY         ANSWER    LAST      FAULTY     LINGER    CLOSED
PART          HEAD        HEAD        HEAD        .            .         .         .          .         .
HEAD          BODY        BODY        BODY        .            .         .         .          .         .
END           .           .           .           ANSWER       .         .         .          .         .
END_OF_LAST   .           .           .           LAST         LAST      .         .          .         .
BAD           LINGER:rs   LINGER:rs   LINGER:rs   LINGER:ars   FAULTY:p  .         .          .         .
EOF           CLOSED:c    CLOSED:c    CLOSED:rc   CLOSED:arc   CLOSED:ac CLOSED:ac CLOSED:ac  CLOSED:c  .
ANSWERED      .           .           .           .            IDLE      CLOSED:c  LINGER:rs  .         .
NEXT_PART     .           .           .           .            BODY      .         .          .         .
HANG_UP       CLOSED:c    CLOSED:c    CLOSED:c    LINGER:s     CLOSED:c  CLOSED:c  CLOSED:c   .         .
TIMEOUT       CLOSED:c    CLOSED:c    LINGER:rs   LINGER:ars   .         .         .          CLOSED:c  .
FULL          CLOSED:rc   .           .           .            .         .         .          .         .
DROP          CLOSED:c    CLOSED:c    CLOSED:c    CLOSED:arc   CLOSED:arc CLOSED:arc CLOSED:arc CLOSED:c .
SHUTDOWN      CLOSED:c    CLOSED:c    CLOSED:c    BODY:f       LAST:f    LAST:f    LAST:f     CLOSED:c  .
"""
LETTERS = dict(zip("apfrsc", Action, strict=True))
ROWS = [line.split() for line in MATRIX.strip().splitlines()]
EXPECTED = {
    (State[name], Happened[event]): cell
    for event, *cells in ROWS[1:]
    for name, cell in zip(ROWS[0], cells, strict=True)
}
PAIRS = list(itertools.product(State, Happened))


def reached(state: State) -> ConnectionState:
    machine = ConnectionState(list_waits(LIMITS))
    machine.state = state
    return machine


def test_the_matrix_has_every_state_and_every_event():
    assert EXPECTED.keys() == set(PAIRS)
    assert TRANSITIONS.keys() == set(State)


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda part: part.name)
def test_each_event_in_each_state(state, event):
    machine = reached(state)
    actions = machine.handle(event, BAD if event in (Happened.BAD, Happened.FULL, Happened.DROP) else None)
    name, _, letters = EXPECTED[state, event].partition(":")
    assert machine.state is (state if name == "." else State[name])
    assert actions == tuple(LETTERS[letter] for letter in letters)
    if Action.REFUSE in actions and event is not Happened.ANSWERED:  # there the refusal came before
        assert machine.refusal is not None


def test_connections_end_and_stay_ended():
    for (state, _), cell in EXPECTED.items():
        name, _, actions = cell.partition(":")
        if state is State.CLOSED:
            assert cell == "."
        if state is State.LINGER:
            assert name in (".", "CLOSED")
        if "r" in actions or "a" in actions:  # after an error, or an answer for nobody, nothing follows
            assert State[name] in ENDING
        if name != "." and State[name] in READS:  # nothing that was thrown away is read again
            assert state in READS


def test_each_wait_has_a_limit_and_ends():
    for state in State:
        wait = reached(state).wait
        assert (wait is None) == (state in (State.ANSWER, State.LAST, State.FAULTY))
        if wait is not None and state is not State.CLOSED:
            machine = reached(state)
            machine.handle(Happened.TIMEOUT)
            assert machine.state in ENDING
    assert reached(State.NEW).wait == reached(State.HEAD).wait  # a head has its time from the connection's begin on
    assert [reached(s).wait.limit_s for s in (State.HEAD, State.BODY, State.IDLE)] == [1, 2, 3]  # type: ignore[union-attr]
    assert reached(State.LINGER).wait.limit_s == LINGER_S  # type: ignore[union-attr]


def test_only_who_has_no_complete_request_makes_room():
    assert READS - {State.ANSWER} == INCOMPLETE


@pytest.mark.parametrize(
    ("state", "event", "status", "words"),
    [
        (State.HEAD, Happened.TIMEOUT, 408, "the request's headers took longer than 1 s to come"),
        (State.BODY, Happened.TIMEOUT, 408, "the request's body took longer than 2 s to come"),
        (State.HEAD, Happened.EOF, 400, "the connection ended before the request was complete"),
        (State.BODY, Happened.EOF, 400, "the connection ended before the request was complete"),
        (State.NEW, Happened.FULL, 400, "bad"),
    ],
)
def test_what_is_refused_is_said(state, event, status, words):
    machine = reached(state)
    machine.handle(event, BAD if event is Happened.FULL else None)
    assert machine.refusal is not None
    assert (machine.refusal.status, machine.refusal.message) == (status, words)


def test_what_is_wrong_behind_a_request_is_refused_after_its_answer():
    machine = ConnectionState(list_waits(LIMITS))
    for event in (Happened.HEAD, Happened.END):
        machine.handle(event)
    machine.handle(Happened.BAD, BAD)
    assert machine.handle(Happened.ANSWERED) == (Action.REFUSE, Action.SHUT)
    assert machine.refusal is BAD


# ---- the reader


class Heard:
    """What a reader has told."""

    def __init__(self, more: bool = True) -> None:
        self.told: list[object] = []
        self._more = more

    def on_head(self, head: RequestHead) -> None:
        self.told.append((head.method, head.target.path, head.keep_alive, head.waits))

    def on_body(self, body: bytes) -> None:
        self.told.append(body)

    def on_end(self) -> bool:
        self.told.append("end")
        return self._more


POST = b"POST /a%20b?c HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = POST.replace(b"Expect: 100-continue", b"Connection: upgrade\r\nUpgrade: h2c")


@pytest.mark.parametrize("size", [1, 7, PIECE])
def test_bytes_become_requests_however_they_are_cut(size):
    heard = Heard()
    reader, data = RequestReader(LIMITS, heard), POST + GET
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    bodies = [part for part in heard.told if isinstance(part, bytes)]
    assert b"".join(bodies) == b"hello"
    assert [part for part in heard.told if part not in bodies] == [
        ("POST", "/a b", True, True),
        "end",
        ("GET", "/", True, False),
        "end",
    ]


def test_an_upgrade_is_ignored_and_its_body_is_read():
    heard = Heard(more=False)
    RequestReader(LIMITS, heard).feed(UPGRADE)
    assert heard.told == [("POST", "/a b", False, False), b"hello", "end"]


def test_a_reader_knows_whether_a_head_has_begun():
    reader = RequestReader(LIMITS, Heard())
    states = []
    for part in (b"GET / HT", b"TP/1.1\r\nHost: x\r\n\r\n", b"\r\n", GET, GET + b"G", b"ET / HTTP/1.1\r\n"):
        reader.feed(part)
        states.append(reader.in_head)
    assert states == [True, False, True, False, True, True]


def test_nothing_behind_the_last_request_is_read():
    heard = Heard(more=False)
    reader = RequestReader(LIMITS, heard)
    reader.feed(GET + b"\0\0")
    reader.feed(b"\0\0")
    assert heard.told == [("GET", "/", True, False), "end"]


def test_what_is_wrong_is_raised():
    with pytest.raises(RefusedError, match="not valid HTTP"):
        RequestReader(LIMITS, Heard()).feed(b"FOO / HTTP/1.1\r\n\r\n")
    with pytest.raises(RefusedError, match="Host"):
        RequestReader(LIMITS, Heard()).feed(b"GET / HTTP/1.1\r\n\r\n")
