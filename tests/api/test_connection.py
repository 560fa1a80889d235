"""What comes over a connection before anybody looks at a key. Bytes over real sockets, limits set low."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from api.harness import NAME, LocalClient, endless, served
from tailrace.api.app import create_app
from tailrace.api.connection import MAX_PIPELINED
from tailrace.api.connection_limits import ConnectionLimits
from tailrace.api.request_head import RefusedError
from tailrace.api.service import Service
from tailrace.api.user import make_user_id
from tailrace.base.process_limits import allow_files
from tailrace.config import ServerConfig, UserConfig
from tailrace.errors import OverloadedError

LOW = {
    "max_headers": 20,
    "max_header_line_bytes": 1000,
    "max_header_bytes": 4000,
    "max_url_bytes": 500,
    "header_timeout_s": 0.6,
    "body_timeout_s": 0.6,
    "idle_timeout_s": 0.6,
    "max_body_mib": 1,
    "api_keys": "",
}
PATIENCE_S = 300  # of a client: a busy machine takes its time
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"


class Place(NamedTuple):
    """A server to talk to."""

    port: int
    client: LocalClient
    service: Service


@contextlib.contextmanager
def place(tokenizer, port: int, tick_s: float = 0.01, **settings: Any) -> Iterator[Place]:
    client = LocalClient(endless, tick_s=tick_s)
    config = ServerConfig(port=port, **LOW | settings)
    app = create_app(client, tokenizer, config, NAME)
    with served(app, port, config):
        yield Place(port, client, app.state.front.default)


@pytest.fixture(scope="module")
def door(tokenizer) -> Iterator[Place]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with place(tokenizer, port) as found:
        yield found


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def rest(line: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while data := line.recv(1 << 16):
            parts.append(data)
    return b"".join(parts)


def say(port: int, *data: bytes, half_close: bool = False) -> bytes:
    """What comes back until the server closes."""
    with connected(port) as line:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in data:
                line.sendall(part)
            if half_close:
                line.shutdown(socket.SHUT_WR)
        return rest(line)


def read(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer that is not chunked."""
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
    assert int(headers.get("content-length", len(body))) == len(body)
    return int(line.split()[1]), headers, body


def refused(answer: bytes, status: int, words: str = "") -> None:
    """It is an error of ours, and the last that is said."""
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    got, headers, body = read(answer)
    error = json.loads(body)["error"]
    assert got == status, error
    assert error.keys() == {"message", "type", "param", "code"}
    assert words in error["message"], error
    assert headers["connection"] == "close"


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/completions", version: bytes = b"1.1") -> bytes:
    size = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + path + b" HTTP/" + version + b"\r\n" + HOST + JSON + b"".join(headers) + size + b"\r\n" + body


def asked(**fields: Any) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": 5, "temperature": 0} | fields).encode()


CHUNKED = b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST

MALFORMED = {
    "a method": (b"FOO / HTTP/1.1\r\n" + HOST + b"\r\n", 400, "method"),
    "a version": (b"GET / HTTP/1.7\r\n" + HOST + b"\r\n", 505, "version"),
    "a later version": (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", 505, "version"),
    "a version that is none": (b"GET / HTTP/x.y\r\n" + HOST + b"\r\n", 400, "version"),
    "a version that others have": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505, "HTTP/2.0"),
    "HTTP/0.9": (b"GET /health\r\n\r\n", 505, "HTTP/0.9"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2.0"),
    "TLS": (bytes.fromhex("16030100a5010000a10303") + bytes(100), 400, "TLS"),
    "line feeds alone": (b"GET / HTTP/1.1\nHost: localhost\n\n", 400, "not valid HTTP"),
    "NUL in a header": (GET + b"X: a\0b\r\n\r\n", 400, "not valid HTTP"),
    "CR in a header": (GET + b"X: a\rb\r\n\r\n", 400, "not valid HTTP"),
    "a space before the colon": (GET + b"X : a\r\n\r\n", 400, "not valid HTTP"),
    "a folded header": (GET + b"X: a\r\n b\r\n\r\n", 400, "not valid HTTP"),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400, "Host"),
    "two hosts": (GET + HOST + b"\r\n", 400, "Host"),
    "two origins": (
        post(asked(), b"Origin: http://localhost\r\n", b"Origin: http://evil.example\r\n"),
        400,
        "one origin",
    ),
    "two content types": (post(asked(), b"Content-Type: text/plain\r\n"), 400, "one content-type"),
    "two keys": (post(asked(), b"Authorization: Bearer a\r\n" * 2), 400, "one authorization"),
    "a port that is none": (b"GET /health HTTP/1.1\r\nHost: localhost:99999\r\n\r\n", 400, "Host"),
    "a port of many digits": (b"GET /health HTTP/1.1\r\nHost: localhost:000080\r\n\r\n", 400, "Host"),
    "a long chunk extension at once": (
        CHUNKED + b"\r\n5;" + b"a" * 25_000 + b"\r\nhello\r\n0\r\n\r\n",
        431,
        "4000 bytes in all",
    ),
    "long trailers at once": (
        CHUNKED + b"\r\n5\r\nhello\r\n0\r\n" + b"X: aaaaa\r\n" * 5000 + b"\r\n",
        431,
        "4000 bytes in all",
    ),
    "a host that is none": (b"GET /health HTTP/1.1\r\nHost: a b/c\r\n\r\n", 400, "Host"),
    "another host in the target": (b"GET http://evil.example/health HTTP/1.1\r\n" + HOST + b"\r\n", 400, "host"),
    "both lengths": (post(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n"), 400, "Transfer-Encoding"),
    "two equal lengths": (post(b"abc", b"Content-Length: 3\r\n"), 400, "Content-Length"),
    "a list of lengths": (GET + b"Content-Length: 3, 3\r\n\r\nabc", 400, "Content-Length"),
    "a signed length": (GET + b"Content-Length: +3\r\n\r\nabc", 400, "Content-Length"),
    "a huge length": (GET + b"Content-Length: 99999999999999999999999\r\n\r\nabc", 400, "Content-Length"),
    "another coding": (GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "chunked"),
    "a coding nearly chunked": (GET + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, "chunked"),
    "chunked twice": (GET + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    "chunks in HTTP/1.0": (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "HTTP/1.0"),
    "a chunk's size": (CHUNKED + b"\r\nzz\r\n", 400, "hunk size"),
    "a negative chunk": (CHUNKED + b"\r\n-5\r\nhello\r\n", 400, "hunk size"),
    "a huge chunk": (CHUNKED + b"\r\n" + b"f" * 17 + b"\r\nhello\r\n", 400, "hunk size"),
    "a chunk without an end": (CHUNKED + b"\r\n2\r\nhello0\r\n\r\n", 400, "chunk"),
    "a proxy's method": (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", 405, "CONNECT"),
    "a target without a slash": (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400, "target"),
    "%00": (b"GET /v1/models/a%00b HTTP/1.1\r\n" + HOST + b"\r\n", 400, "control"),
    "a line break in the path": (b"GET /v1/models/a%0d%0ab HTTP/1.1\r\n" + HOST + b"\r\n", 400, "control"),
    "an escape that is none": (b"GET /v1/models/%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400, "hexadecimal"),
    "a byte beyond ASCII in the path": (b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n", 400, "url"),
    "a long path": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "500 bytes"),
    "a long query": (b"GET /health?" + b"a" * 600 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "500 bytes"),
    "many headers": (GET + b"X: a\r\n" * 20 + b"\r\n", 431, "20 headers"),
    "a long header": (GET + b"X: " + b"a" * 1000 + b"\r\n\r\n", 431, "1000 bytes"),
    "a long name": (GET + b"x" * 1000 + b": a\r\n\r\n", 431, "1000 bytes"),
    "much in headers": (GET + (b"X: " + b"a" * 900 + b"\r\n") * 5 + b"\r\n", 431, "4000 bytes in all"),
    "an expectation": (post(asked(), b"Expect: a miracle\r\n"), 417, "100-continue"),
}


@pytest.mark.few
@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("pieces", [False, True], ids=["at once", "in pieces"])
def test_what_is_no_request_is_refused_in_our_shape(door, case, pieces):
    data, status, words = MALFORMED[case]
    if pieces and len(data) > 1000:
        pytest.skip("in many pieces below")
    with connected(door.port) as line:
        for part in [data[i : i + 7] for i in range(0, len(data), 7)] if pieces else [data]:
            with contextlib.suppress(OSError):
                line.sendall(part)
                time.sleep(0.0005)
        refused(rest(line), status, words)


MESSAGES = b"/v1/messages"
REFUSED_MESSAGES = {
    "a control character": (b"GET /v1/messages/msg_%02 HTTP/1.1\r\n" + HOST + b"\r\n", "invalid_request_error"),
    "an escape that is none": (b"GET /v1/messages/%zz HTTP/1.1\r\n" + HOST + b"\r\n", "invalid_request_error"),
    "a whole URL": (b"GET http://x/v1/messages?a HTTP/1.1\r\n" + HOST + b"\r\n", "invalid_request_error"),
    "two keys": (post(asked(), b"X-Api-Key: a\r\n" * 2, path=MESSAGES), "invalid_request_error"),
    "headers": (b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 30 + b"\r\n", "invalid_request_error"),
    "a chunk's size": (CHUNKED.replace(b"/v1/completions", MESSAGES) + b"\r\nzz\r\n", "invalid_request_error"),
    "a body that does not come": (post(b"{}", path=MESSAGES)[:-1], "timeout_error"),
}


@pytest.mark.parametrize("case", REFUSED_MESSAGES)
def test_a_request_below_messages_is_refused_in_anthropics_shape(door, case):
    data, kind = REFUSED_MESSAGES[case]
    with connected(door.port) as line:
        line.sendall(data)
        _, _, body = read(rest(line))
    answer = json.loads(body)
    assert answer["type"] == "error"
    assert answer["error"].keys() == {"type", "message", "details"}
    assert answer["error"]["type"] == kind


ENDLESS = {
    "a header": (GET + b"X: ", b"a", 431),
    "headers": (GET, b"X: a\r\n", 431),
    "a name": (GET, b"x", 431),
    "a URL": (b"GET /", b"a", 414),
    "blank lines": (b"", b"\r\n", 431),
    "a chunk's extension": (CHUNKED + b"\r\n5;a=", b"a", 431),
    "zeros before a chunk's size": (CHUNKED + b"\r\n", b"0", 431),
    "extensions of many chunks": (CHUNKED + b"\r\n", b"1;" + b"a" * 98 + b"\r\n \r\n", 431),
    "trailers": (CHUNKED + b"\r\n0\r\n", b"X: a\r\n", 431),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_refused_while_it_comes(door, what):
    """Also without the end of a line; the server takes no more than a few reads of it."""
    begin, more, status = ENDLESS[what]
    piece, sent = more * (20_000 // len(more)), 0
    with connected(door.port) as line:
        line.sendall(begin)
        with contextlib.suppress(OSError):
            for _ in range(2000):
                line.sendall(piece)
                sent += len(piece)
                line.settimeout(0.001)
                with contextlib.suppress(TimeoutError):
                    line.recv(1, socket.MSG_PEEK)
                    break
                line.settimeout(PATIENCE_S)
        line.settimeout(PATIENCE_S)
        assert sent < 5_000_000
        refused(rest(line), status)


def test_a_body_that_nobody_reads_ends_with_the_answer(door):
    """GET /health answers at once; what still comes is not read for ever."""
    answer = say(door.port, GET + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n")
    status, headers, _ = read(answer)
    assert (status, headers["connection"]) == (200, "close")


def test_trailers_are_no_headers(door):
    body = asked()
    trailer = b"X-Request-Id: smuggled\r\nHost: evil.example\r\n"
    data = CHUNKED + b"Connection: close\r\n\r\n" + b"%x\r\n" % len(body) + body + b"\r\n0\r\n" + trailer + b"\r\n"
    status, headers, _ = read(say(door.port, data))
    assert (status, headers["x-request-id"] == "smuggled") == (200, False)


SLOW = {
    "nothing": (b"", b"", None),
    "a request line": (b"", b"G", 408),
    "headers": (GET + b"X: ", b"a", 408),
    "a body": (b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 5000\r\n\r\n", b"a", 408),
    "a chunk": (CHUNKED + b"\r\nff\r\n", b"a", 408),
    "blank lines": (b"", b"\r\n", 408),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("what", SLOW)
def test_slow_senders_are_all_gone_after_the_limit(door, what):
    begin, more, status = SLOW[what]
    lines = [connected(door.port) for _ in range(20)]
    for line in lines:
        line.sendall(begin)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        for line in lines:
            with contextlib.suppress(OSError):
                line.sendall(more)
        time.sleep(0.05)
    for line in lines:
        line.settimeout(PATIENCE_S)
        answer = rest(line)
        line.close()
        if status is None or (what == "a request line" and answer.startswith(b"HTTP/1.1 400")):  # "GG" is no method
            continue
        refused(answer, status, "0.6 s")
    assert not door.client.engine.requests


@pytest.mark.long
def test_an_idle_connection_is_closed_and_a_busy_one_is_not(tokenizer, free_port):
    with place(tokenizer, free_port(), tick_s=0.03, idle_timeout_s=6.0) as found:
        with connected(found.port) as line:
            for _ in range(3):
                line.sendall(GET + b"\r\n")
                time.sleep(2.1)  # together longer than it may be idle
                assert line.recv(4096).startswith(b"HTTP/1.1 200")
            assert rest(line) == b""
        answer = say(found.port, post(asked(max_tokens=220), b"Connection: close\r\n"))  # 6.6 s
        assert read(answer)[0] == 200


def test_connections_in_all(tokenizer, free_port):
    """Whoever waits longest makes room; those that are being answered do not. A user alone leaves places to others."""
    with place(tokenizer, free_port(), tick_s=0.02, max_connections=8, header_timeout_s=20, idle_timeout_s=20) as found:
        idle = [connected(found.port) for _ in range(8)]
        time.sleep(0.1)
        assert say(found.port, GET + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
        idle[0].settimeout(PATIENCE_S)
        assert rest(idle[0]) == b""
        idle[7].sendall(GET + b"\r\n")
        assert idle[7].recv(4096).startswith(b"HTTP/1.1 200")
        busy = [connected(found.port) for _ in range(6)]
        found.client.hold = True
        for line in busy:
            line.sendall(post(asked()))
        wait_for(lambda: len(found.client.engine.requests) == 6)
        refused(say(found.port, GET + b"\r\n"), 429, "this user has 6 of the 6 connections for all users")
        found.client.hold = False
        for line in [*idle, *busy]:
            line.close()
        wait_for(found.client.idle)
        assert say(found.port, GET + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_connections_of_one_address(tokenizer, free_port):
    with place(tokenizer, free_port(), max_connections_per_address=3, header_timeout_s=20) as found:
        lines = [connected(found.port) for _ in range(3)]
        time.sleep(0.1)
        refused(say(found.port, GET + b"\r\n"), 429, "one address")
        lines.pop().close()
        wait_for(lambda: say(found.port, GET + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200"))
        for line in lines:
            line.close()


class Line:
    """A connection of the limits below. It forgets itself, as a connection that is closed does."""

    def __init__(self, limits: ConnectionLimits, address: str = "1.2.3.4"):
        self.limits, self.address = limits, address
        self.dropped: RefusedError | None = None
        limits.acquire(self, address)

    def drop(self, refusal: RefusedError) -> None:
        assert self.dropped is None
        self.dropped = refusal
        self.limits.release(self, self.address)

    def ask(self, user: str) -> Line:
        """Send a whole request."""
        self.limits.claim(self, user)
        self.limits.note_waiting(self, False)
        return self

    def rest(self) -> Line:
        self.limits.note_waiting(self, True)
        return self


def open_line(limits: ConnectionLimits, user: str) -> Line:
    return Line(limits).ask(user)


def sixteen(**settings: Any) -> ConnectionLimits:
    """Places for 14 connections of users, and for two strangers."""
    return ConnectionLimits(ServerConfig(max_connections=16, **settings), 1000)


def dropped(lines: list[Line]) -> list[int]:
    return [number for number, line in enumerate(lines) if line.dropped]


def test_whoever_is_refused_for_the_address_takes_no_place():
    """Before, 12 of one address filled a door of 10, and another address was refused."""
    limits = ConnectionLimits(ServerConfig(max_connections=10, max_connections_per_address=2), 1000)
    first = [Line(limits, "a"), Line(limits, "a")]
    for _ in range(10):
        with pytest.raises(RefusedError, match="from one address"):
            Line(limits, "a")
    first += [Line(limits, address) for address in "bcdefghi"]
    Line(limits, "j")
    assert dropped(first) == [0], "the stranger that has waited longest"
    Line(limits, "a")


def test_one_users_requests_refuse_that_user_alone():
    limits = sixteen()
    lines = [open_line(limits, "a") for _ in range(14)]
    with pytest.raises(OverloadedError, match="this user has 14 of the 14 connections"):
        open_line(limits, "a")
    assert dropped(lines) == []
    others = [open_line(limits, user) for user in "bcbcbc"]
    assert dropped(lines) == [8, 9, 10, 11, 12, 13], "the newest of the user who holds most"
    assert lines[13].dropped is not None
    assert lines[13].dropped.status == 429
    assert dropped(others) == []
    with pytest.raises(OverloadedError, match="this user has 8 of the 14"):
        open_line(limits, "a")
    [open_line(limits, "b") for _ in range(2)]
    assert len(dropped(lines)) == 8
    assert dropped(others) == []


def test_an_idle_connection_of_the_user_who_holds_most_goes_first():
    limits = sixteen()
    lines = [open_line(limits, "a") for _ in range(14)]
    lines[5].rest()
    other = open_line(limits, "b")
    assert dropped(lines) == [5]
    lines[7].rest()
    lines.append(open_line(limits, "a"))
    assert dropped(lines) == [5, 7], "the user's own one"
    other.rest()
    with pytest.raises(OverloadedError):
        open_line(limits, "a")
    open_line(limits, "c")
    assert dropped([*lines, other]) == [5, 7, 14], "the idle one of a user with few is left alone"


def test_strangers_cost_users_nothing():
    limits = sixteen()
    lines = [open_line(limits, user).rest() for user in "aaaaaaaaabbccc"]
    for _ in range(100):
        Line(limits)
    assert dropped(lines) == []
    open_line(limits, "d")
    assert dropped(lines) == [0]


@pytest.mark.parametrize("places", [4, 8, 16])
def test_strangers_from_one_address_close_no_stranger_of_another(places):
    limits = ConnectionLimits(ServerConfig(max_connections=places), 1000)
    users = [open_line(limits, "a") for _ in range(places - 2)]
    Line(limits, "flood")
    newcomer = Line(limits, "newcomer")
    for _ in range(100):
        Line(limits, "flood")
    assert dropped([*users, newcomer]) == []
    newcomer.ask("b")
    assert dropped([*users, newcomer]) == [places - 3]


@pytest.mark.parametrize("places", [1, 4])
def test_strangers_who_are_gone_leave_nothing_behind(places):
    limits = ConnectionLimits(ServerConfig(max_connections=places), 1000)
    lines = [open_line(limits, "a")]
    for number in range(100):
        with contextlib.suppress(RefusedError):
            lines.append(Line(limits, str(number)))
    assert len(lines) == (1 if places == 1 else 101)
    for line in lines:
        if not line.dropped:
            limits.release(line, line.address)
    assert not limits._crowds  # pyright: ignore[reportPrivateUsage]
    assert not limits._origins  # pyright: ignore[reportPrivateUsage]


def test_many_with_one_slow_request_end_no_request_of_one_with_a_few():
    """Without keys an attacker may have many addresses."""
    limits = sixteen()
    busy = [open_line(limits, "a") for _ in range(3)]
    slow = [open_line(limits, f"address {number}").rest() for number in range(40)]
    assert dropped(busy) == []
    assert dropped(slow) == list(range(29))


def test_connections_are_divided_by_weight():
    users: Any = {"heavy": UserConfig(api_key="k", weight=3)}
    limits, heavy = sixteen(users=users), make_user_id("key", "k")
    lines = [open_line(limits, heavy) for _ in range(8)] + [open_line(limits, "b") for _ in range(6)]
    open_line(limits, heavy)
    assert dropped(lines) == [13]
    with pytest.raises(OverloadedError):
        open_line(limits, "b")


def test_a_connection_may_change_its_user():
    limits = sixteen()
    lines = [open_line(limits, "a") for _ in range(14)]
    lines[0].rest().ask("b")
    with pytest.raises(OverloadedError, match="this user has 13 of"):
        open_line(limits, "a")
    assert dropped(lines) == []


def test_with_keys_a_request_without_one_is_a_strangers(tokenizer, free_port):
    """B's request gets a place although requests of A have all, and requests without a key come and go."""
    keys: Any = {"max_connections": 8, "api_keys": "key-a,key-b"}
    auth = {user: b"Authorization: Bearer key-%s\r\n" % user.encode() for user in "ab"}
    with place(tokenizer, free_port(), tick_s=0.02, **keys) as found:
        found.client.hold = True
        lines = [connected(found.port) for _ in range(6)]
        for line in lines:
            line.sendall(post(asked(), auth["a"]))
        wait_for(lambda: len(found.client.engine.requests) == 6)
        for _ in range(10):
            refused(say(found.port, post(asked())), 401)
        refused(say(found.port, post(asked(), auth["a"])), 429, "this user has 6 of the 6")
        answer = say(found.port, b"GET /v1/models HTTP/1.1\r\n" + HOST + auth["b"] + b"Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        refused(rest(lines[-1]), 429, "its user has most connections")
        wait_for(lambda: len(found.client.engine.requests) == 5)
        found.client.hold = False
        for line in lines[:-1]:
            assert line.recv(4096).startswith(b"HTTP/1.1 200")
        for line in lines:
            line.close()


def test_whoever_sends_no_body_makes_room(tokenizer, free_port):
    settings: Any = {"max_connections": 5, "body_timeout_s": 20, "idle_timeout_s": 20}
    with place(tokenizer, free_port(), **settings) as found:
        lines = [connected(found.port) for _ in range(4)]
        for line in lines:
            line.sendall(post(asked())[:-5])
        time.sleep(0.2)
        assert say(found.port, GET + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
        lines[0].settimeout(PATIENCE_S)
        refused(rest(lines[0]), 429, "its user has most connections")
        lines[3].sendall(asked()[-5:])
        assert lines[3].recv(4096).startswith(b"HTTP/1.1 200")
        for line in lines:
            line.close()


def test_where_the_limit_on_files_cannot_be_raised_it_is_known(monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2**20))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert allow_files() == 1024


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


# ---- several requests on a connection


def test_pipelined_requests_are_answered_in_their_order(door):
    paths = [b"/v1/models/%d" % i for i in range(10)]
    data = b"".join(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n" for path in paths)
    answer = say(door.port, data + post(asked(max_tokens=30)) + GET + b"Connection: close\r\n\r\n" + GET + b"\r\n")
    assert [answer.find(b"'%d'" % i) for i in range(10)] == sorted(answer.find(b"'%d'" % i) for i in range(10))
    assert answer.count(b"HTTP/1.1 404") == 10
    assert answer.count(b"HTTP/1.1 200") == 2  # what comes behind the last is not read
    assert answer.find(b"text_completion") < answer.find(b'"ready"')


def test_a_flood_of_pipelined_requests_is_cut(door):
    answer = say(door.port, post(asked(max_tokens=20)) + (GET + b"\r\n") * 4000)
    assert answer.count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
    refused(answer[answer.rindex(b"HTTP/1.1 ") :], 400, "wait behind another")


def test_what_is_wrong_behind_a_request_does_not_hurt_its_answer(door):
    answer = say(door.port, post(asked(max_tokens=20)) + b"FOO / HTTP/1.1\r\n\r\n")
    first, second = answer.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200")
    refused(b"HTTP/1.1 " + second, 400, "method")


def test_what_waits_behind_requests_is_counted_as_elsewhere(door):
    """It is kept until its turn, and then there all at once."""
    behind = (GET + b"\r\n") * 2 + CHUNKED + b"\r\n5;" + b"a" * 25_000 + b"\r\nhello\r\n0\r\n\r\n"
    answer = say(door.port, post(asked(max_tokens=20)) + behind)
    assert answer.count(b"HTTP/1.1 200") == 3
    refused(answer[answer.rindex(b"HTTP/1.1 ") :], 431, "4000 bytes in all")


def test_a_body_that_waits_behind_a_long_answer_is_not_late(door):
    with connected(door.port) as line:
        second = post(asked(max_tokens=3), b"Connection: close\r\n")
        door.client.hold = True
        line.sendall(post(asked(max_tokens=5)) + second[:-10])
        time.sleep(1.2)  # twice what a body may take
        line.sendall(second[-10:])
        door.client.hold = False
        assert rest(line).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_that_is_not_had_takes_nothing_away(door, chunked):
    """Java's client asks for HTTP/2 so with every first request, bodies included."""
    ask = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"  # noqa: E501, one text
    body = asked()
    data = CHUNKED + ask + b"\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if chunked else post(body, ask)
    for pieces in ([data], [data[:-20], data[-20:]]):
        status, _, body = read(say(door.port, *pieces))
        assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 5)
    refused(say(door.port, CHUNKED + ask + b"\r\nzz\r\n"), 400, "hunk size")


def test_a_web_socket_is_answered_like_any_other_request(door):
    ask = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    assert read(say(door.port, GET + ask))[0] == 200
    assert read(say(door.port, b"GET /v1/chat/completions HTTP/1.1\r\n" + HOST + ask))[0] == 405


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET http://localhost/health?a=b HTTP/1.1", 200),
        (b"HEAD /health HTTP/1.1", 200),
        (b"HEAD /v1/completions HTTP/1.1", 405),
        (b"OPTIONS * HTTP/1.1", 404),
        (b"TRACE /health HTTP/1.1", 405),
        (b"GET /v1/../health HTTP/1.1", 404),
        (b"GET /v1/%2e%2e/health HTTP/1.1", 404),
        (b"GET //health HTTP/1.1", 404),
        (b"GET /health?%zz&a=%00 HTTP/1.1", 200),
        (b"GET /v1/models/%ff HTTP/1.1", 404),
    ],
)
def test_odd_targets_have_an_answer(door, line, status):
    answer = say(door.port, line + b"\r\n" + HOST + b"Connection: close\r\n\r\n")
    got, _, body = answer.split(b" ", 2)[1], None, answer.partition(b"\r\n\r\n")[2]
    assert int(got) == status
    assert line.startswith(b"HEAD") == (body == b"")


def test_http_1_0_gets_no_chunks(door):
    with connected(door.port) as line:
        line.sendall(post(asked(stream=True), version=b"1.0"))
        _, headers, body = read(rest(line))
    assert "transfer-encoding" not in headers
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


def test_whoever_waits_to_be_told_to_continue_is(door):
    body = asked()
    with connected(door.port) as line:
        line.sendall(post(body, b"Expect: 100-continue\r\n", b"Connection: close\r\n")[: -len(body)])
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(body)
        assert read(rest(line))[0] == 200
    with connected(door.port) as line:  # and where it would be too large, is not
        line.sendall(
            b"POST /v1/completions HTTP/1.1\r\n"
            + HOST
            + JSON
            + b"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"
        )
        refused(rest(line), 413)


# ---- clients that say no more


@pytest.mark.few(3)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold", [False, True], ids=["running", "before its first token"])
def test_a_client_that_is_gone_gives_its_place_back(tokenizer, free_port, stream, version, hold):
    """After an orderly close. A client that closes only its sending side looks the same (decision 0086)."""
    with place(tokenizer, free_port(), tick_s=0.05) as found:
        found.client.hold = hold
        line = connected(found.port)
        line.sendall(post(asked(stream=stream, max_tokens=240), version=version))
        wait_for(lambda: found.client.engine.requests)
        time.sleep(0.12)
        line.shutdown(socket.SHUT_WR)
        wait_for(lambda: not found.service.open_requests)
        assert line.recv(1 << 16).count(b"[DONE]") == 0
        line.close()
        assert found.service.metrics.aborted.labels("disconnect")._value.get() == 1
        found.client.hold = False
        wait_for(found.client.idle)


def test_the_end_before_the_end_of_a_request(door):
    refused(say(door.port, GET + b"X: a", half_close=True), 400, "before the request was complete")
    refused(say(door.port, post(asked())[:-5], half_close=True), 400, "before the request was complete")
    assert say(door.port, b"", half_close=True) == b""
    assert not door.client.engine.requests


@pytest.mark.long
def test_an_unread_answer_does_not_hold_the_door(tokenizer, free_port):
    """A client that takes nothing of a large answer is cut when the connection has been idle for its time."""
    with place(tokenizer, free_port(), idle_timeout_s=0.2) as found, connected(found.port) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * 15)
        other = threading.Event()
        other.wait(1.5)
        line.settimeout(PATIENCE_S)
        assert len(rest(line)) < 10_000_000
