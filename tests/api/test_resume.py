"""Resumable requests over real sockets: whatever a client loses, it gets the rest, byte for byte."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from api.harness import NAME, LocalClient, endless, saying, served
from tailrace.api.app import create_app
from tailrace.api.kept_streams import KeptStreams
from tailrace.config import ServerConfig

WAIT_S = 300
NUMBER = re.compile(rb"^id: (\d+)\ndata: ", re.MULTILINE)
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "x="},
}
PREFIX = {"/v1/chat/completions": "chatcmpl-", "/v1/completions": "cmpl-", "/v1/messages": "msg_"}
KEYS = {"authorization": "Bearer one"}
OTHER = {"authorization": "Bearer two"}


class Server:
    """A server in a thread, and clients that read its bytes."""

    def __init__(self, url: str, client: LocalClient, app: Any) -> None:
        self.url, self.client, self.app = url, client, app
        self.streams = app.state.front.streams

    def open(self, path: str, name: str, **fields: Any) -> Any:
        """A connection that gets the stream of a resumable request."""
        body = ASKED[path] | {"temperature": 0, "stream": True, "resumable": True, "request_id": name} | fields
        return httpx.stream("POST", self.url + path, json=body, timeout=WAIT_S)

    def resume(
        self, path: str, name: str, number: int | str | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """The rest of a stream."""
        headers = (headers or {}) | ({} if number is None else {"last-event-id": str(number)})
        return httpx.get(f"{self.url}{path}/{PREFIX[path]}{name}", headers=headers, timeout=WAIT_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def idle(self) -> bool:
        """No request runs."""
        return not self.app.state.front.default.open_requests and self.client.idle()


@contextmanager
def serving(tokenizer, free_port, client: LocalClient, **config: Any) -> Iterator[Server]:
    app = create_app(client, tokenizer, ServerConfig(**config), NAME)
    with served(app, free_port(), ServerConfig(**config)) as url:
        yield Server(url, client, app)


def split(data: bytes) -> list[bytes]:
    """The whole events of a stream."""
    return [block + b"\n\n" for block in data.split(b"\n\n")[:-1] if not block.startswith(b":")]


def join(data: bytes) -> bytes:
    return b"".join(split(data))


def read_some(answer: httpx.Response, size: int) -> bytes:
    """At least so many bytes, or all."""
    data = b""
    for piece in answer.iter_raw(1):
        data += piece
        if len(data) >= size:
            break
    return data


@pytest.mark.parametrize("path", ASKED)
def test_a_stream_that_is_cut_at_any_event_is_whole_again(tokenizer, free_port, path):
    with serving(tokenizer, free_port, LocalClient(saying(b"Hello, world"))) as server:
        with server.open(path, "a", n=2, stream_options={"include_usage": True}) as answer:
            whole = b"".join(answer.iter_raw())
        found = split(whole)
        assert len(found) > 10
        assert [*map(int, NUMBER.findall(whole))] == [*range(1, len(found) + 1)]
        assert found[-1].endswith(b"\ndata: [DONE]\n\n")
        assert join(server.resume(path, "a").content) == whole
        for number in range(len(found)):
            again = server.resume(path, "a", number)
            assert again.headers["content-type"].startswith("text/event-stream")
            assert b"".join(found[:number]) + join(again.content) == whole
        assert server.resume(path, "a", len(found)).status_code == 204


def test_a_message_is_resumed_with_its_own_events(tokenizer, free_port):
    path = "/v1/messages"
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "stream": True, "resumable": True}
    with serving(tokenizer, free_port, LocalClient(saying(b"Hello"))) as server:
        first = httpx.post(server.url + path, json=body | {"request_id": "a"}, timeout=WAIT_S)
        found = split(first.content)
        assert found[0].startswith(b"id: 1\nevent: message_start\ndata: {")
        assert found[-1].startswith(b"id: %d\nevent: message_stop\n" % len(found))
        for number in range(len(found)):
            assert b"".join(found[:number]) + join(server.resume(path, "a", number).content) == first.content
        assert server.resume(path, "a", len(found)).status_code == 204
        gone = server.resume(path, "b")
        assert (gone.status_code, gone.json()["type"]) == (404, "error")
        whole = httpx.post(server.url + path, json=body | {"stream": False}, timeout=WAIT_S)
        assert (whole.status_code, whole.json()["error"]["details"]["param"]) == (400, "resumable")
        plain = httpx.post(server.url + path, json=body | {"resumable": False}, timeout=WAIT_S)
        assert b"id: 1\n" not in plain.content


@pytest.mark.parametrize("path", ASKED)
def test_ordinary_streams_have_no_ids(tokenizer, free_port, path):
    with serving(tokenizer, free_port, LocalClient(saying(b"Hello"))) as server:
        with server.open(path, "a", resumable=False) as answer:
            assert b"id: " not in b"".join(answer.iter_raw())
        assert server.resume(path, "a").status_code == 404


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("size", [0, 1, 300, 333, 1500])
def test_a_connection_that_breaks_while_it_runs(tokenizer, free_port, path, size):
    """Also in the middle of an event: the id of the last whole event counts."""
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.005)) as server:
        with server.open(path, "a", max_tokens=100) as answer:
            got = split(read_some(answer, size)) if size else []
        assert not server.idle()
        rest = server.resume(path, "a", len(got))
        joined = b"".join(got) + join(rest.content)
        assert joined == server.resume(path, "a").content
        assert b'"finish_reason":"length"' in joined
        assert b"[DONE]" in joined
        server.until(server.idle)


def test_two_readers_get_the_same(tokenizer, free_port):
    path, found = "/v1/completions", {}
    with (
        serving(tokenizer, free_port, LocalClient(endless, tick_s=0.005)) as server,
        server.open(path, "a", max_tokens=100) as answer,
    ):
        pieces = answer.iter_raw()
        begun = next(pieces)

        def read(number: int) -> None:
            found[number] = join(server.resume(path, "a", number).content)

        readers = [threading.Thread(target=read, args=(number,)) for number in (0, 0, 1)]
        for reader in readers:
            reader.start()
        whole = join(begun + b"".join(pieces))
        for reader in readers:
            reader.join(WAIT_S)
    assert found == {0: whole, 1: b"".join(split(whole)[1:])}


def test_a_slow_reader_holds_nobody_up(tokenizer, free_port):
    """Its request ends, and it still gets all events."""
    with serving(tokenizer, free_port, LocalClient(endless), stream_buffer_kib=1) as server:
        body = ASKED["/v1/completions"] | {"stream": True, "resumable": True, "request_id": "a", "max_tokens": 240}
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            request = httpx.Request("POST", server.url + "/v1/completions", json=body)
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            slow.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode() + request.content)
            assert slow.recv(1)
            server.until(lambda: len(server.streams.store) == 1 and server.idle())
            data = b""
            while piece := slow.recv(65536):
                data += piece
        whole = server.resume("/v1/completions", "a").content
        assert data.count(b"\nid: ") == len(split(whole)) > 200
        assert b'"finish_reason":"length"' in whole


def test_nobody_reads_for_too_long(tokenizer, free_port):
    path = "/v1/chat/completions"
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.01), resume_s=1.0) as server:
        with server.open(path, "a", max_tokens=200) as answer:
            next(answer.iter_raw())
        server.until(server.idle)
        rest = server.resume(path, "a")
        assert rest.status_code == 200
        last = split(rest.content)[-2]
        assert (b'"finish_reason":"abort"' in last and b'"stop_reason":"disconnect"' in last) or b'"length"' in last
        server.until(lambda: server.resume(path, "a").status_code == 404)


class Chunk(msgspec.Struct):
    text: str


class Endless:
    """A request with an event each second until it is cut."""

    id = "cmpl-a"

    def __init__(self) -> None:
        self.causes: list[str] = []

    def cut(self, cause: str) -> None:
        self.causes.append(cause)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        while not self.causes:
            await asyncio.sleep(1)
            yield Chunk("a")


async def test_the_time_without_a_reader(leaps):
    """Every reader gives the request the whole time again, a reader at another front end too."""
    kept, request = KeptStreams(1 << 20, resume_s=10.0), Endless()
    kept.store.clock = leaps
    begin_s = leaps()
    kept.start("user", request, request.chunks())
    await asyncio.sleep(9.5)
    part = kept.read_part("user", request.id, 3)
    assert part is not None
    assert part.total == 9
    await asyncio.sleep(9.5)
    with kept.reading("user", request.id):
        await asyncio.sleep(100)
    assert not request.causes
    assert leaps() - begin_s >= 119
    await asyncio.sleep(9.5)
    assert not request.causes
    await asyncio.sleep(3)
    assert request.causes == ["disconnect"]
    part = kept.read_part("user", request.id, 0)
    assert part is not None
    assert part.ended
    assert part.events[0] == b'id: 1\ndata: {"text":"a"}\n\n'
    await asyncio.sleep(11)
    assert kept.read_part("user", request.id, 0) is None
    assert kept.store.bytes == 0


@pytest.mark.parametrize("path", ASKED)
def test_what_is_refused(tokenizer, free_port, path):
    with serving(tokenizer, free_port, LocalClient(saying(b"Hello"))) as server:
        for fields, field in (
            ({"stream": False}, "resumable"),
            ({"max_tokens": 0} if path == "/v1/chat/completions" else {"max_tokens": -7}, "max_tokens"),
            ({"resumable": 3}, "resumable"),
        ):
            with server.open(path, "a", **fields) as answer:
                answer.read()
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
            assert server.resume(path, "a").status_code == 404
        with server.open(path, "a") as answer:
            count = len(split(b"".join(answer.iter_raw())))
        for number in (-1, "x", count + 1, 10**13, "1.0"):
            wrong = server.resume(path, "a", number)
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "Last-Event-ID"), wrong.text
        other = next(iter(ASKED.keys() - {path}))
        gone = httpx.get(f"{server.url}{other}/{PREFIX[path]}a")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "request_not_found")
        assert httpx.get(f"{server.url}/v1/responses/{PREFIX[path]}a").status_code == 404


def test_a_server_that_keeps_nothing(tokenizer, free_port):
    with (
        serving(tokenizer, free_port, LocalClient(saying(b"Hello")), resume_s=0.0) as server,
        server.open("/v1/completions", "a") as answer,
    ):
        assert "resume-s" in answer.read().decode()
        assert answer.status_code == 400


def test_a_name_that_runs_is_not_given_twice(tokenizer, free_port):
    path = "/v1/completions"
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.01)) as server:
        with server.open(path, "a", max_tokens=200) as answer:
            next(answer.iter_raw())
            with server.open(path, "a") as second:
                second.read()
            assert (second.status_code, second.json()["error"]["param"]) == (400, "request_id")
        httpx.delete(f"{server.url}/v1/requests/cmpl-a").raise_for_status()
        assert b'"stop_reason":"cancelled"' in server.resume(path, "a").content
        server.until(server.idle)
        with server.open(path, "a", max_tokens=3) as again:
            whole = b"".join(again.iter_raw())
        assert server.resume(path, "a").content == whole


def test_another_users_stream_does_not_exist(tokenizer, free_port):
    path = "/v1/completions"
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.01), api_keys="one, two") as server:
        body = ASKED[path] | {"stream": True, "resumable": True, "request_id": "a", "max_tokens": 100}
        with httpx.stream("POST", server.url + path, json=body, headers=KEYS, timeout=WAIT_S) as answer:
            next(answer.iter_raw())
            assert server.resume(path, "a", headers=OTHER).status_code == 404
            assert server.resume(path, "a", 1, headers=OTHER).status_code == 404
        whole = server.resume(path, "a", headers=KEYS)
        assert whole.status_code == 200
        assert server.resume(path, "a", headers=OTHER).json()["error"]["code"] == "request_not_found"
        assert server.resume(path, "a").status_code == 401


def test_an_engine_that_dies_ends_it_by_an_error(tokenizer, free_port):
    path, config = "/v1/chat/completions", {"on_engine_death": "restart"}
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.01), **config) as server:
        with server.open(path, "a", max_tokens=200) as answer:
            got = read_some(answer, 300)
        loop = server.client._pump.get_loop()
        loop.call_soon_threadsafe(server.client.die)
        rest = server.resume(path, "a", len(split(got)))
        last = split(rest.content)[-1]
        assert b'"code":"engine_dead"' in last
        assert last.startswith(b"id: ")
        assert b"[DONE]" not in rest.content


@pytest.mark.parametrize("waits", [True, False], ids=["its client waits", "its client has left"])
def test_a_request_that_fails_late_and_without_an_event(tokenizer, free_port, waits):
    """The answer has begun with comments, or nobody waits for it: the error is its only event."""
    path, client = "/v1/completions", LocalClient(endless)
    client.hold = True
    with serving(tokenizer, free_port, client, keep_alive_s=0.05, on_engine_death="restart") as server:
        with server.open(path, "a") as answer:
            pieces = answer.iter_raw()
            assert next(pieces).startswith(b": keep-alive")
            if not waits:
                answer.close()
            client._pump.get_loop().call_soon_threadsafe(client.die)
            got = b"".join(pieces) if waits else b""
        server.until(lambda: not server.app.state.front.default.open_requests)
        whole = server.resume(path, "a")
        assert whole.status_code == 200
        assert b'"code":"engine_dead"' in whole.content
        assert not waits or join(got) == join(whole.content)


def test_a_client_that_leaves_before_a_failure_finds_the_error(tokenizer, free_port):
    path, client = "/v1/completions", LocalClient(endless)
    client.hold = True
    with serving(tokenizer, free_port, client, on_engine_death="restart") as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                server.url + path,
                json=ASKED[path] | {"stream": True, "resumable": True, "request_id": "a"},
                timeout=httpx.Timeout(WAIT_S, read=0.5),
            )
        server.until(lambda: bool(server.app.state.front.default.open_requests))
        [(stream, _)] = server.streams._running.values()
        server.until(stream.begun.is_set)  # its client's leaving was noticed
        client._pump.get_loop().call_soon_threadsafe(client.die)
        server.until(lambda: not server.app.state.front.default.open_requests)
        assert b'"code":"engine_dead"' in server.resume(path, "a").content


def test_a_shutdown_ends_it_by_an_error(tokenizer, free_port):
    found: list[bytes] = []
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.02), drain_timeout_s=0.1) as server:
        with server.open("/v1/completions", "a", max_tokens=200) as answer:
            next(answer.iter_raw())
        with httpx.stream("GET", f"{server.url}/v1/completions/cmpl-a", timeout=WAIT_S) as rest:
            pieces = rest.iter_raw()
            found.append(next(pieces))
            reader = threading.Thread(target=lambda: found.extend(pieces))
            reader.start()
            loop = server.client._pump.get_loop()
            asyncio.run_coroutine_threadsafe(server.app.state.front.drain(0.1), loop).result(WAIT_S)
            reader.join(WAIT_S)
    assert b"shutting down" in split(b"".join(found))[-1]


def test_events_take_a_bounded_number_of_bytes(tokenizer, free_port):
    """A stream that is dropped for want of memory ends, and its reader learns it."""
    path = "/v1/completions"
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.01)) as server:
        server.streams.store.bounds = server.streams.store.bounds._replace(max_bytes=10_000)
        with server.open(path, "a", max_tokens=240) as answer:
            data = b"".join(answer.iter_raw())
        assert b'"code":"request_not_found"' in split(data)[-1]
        assert 5_000 < len(data) < 20_000
        server.until(server.idle)
        assert server.streams.store.bytes <= 10_000
        assert server.resume(path, "a").status_code == 404
        with server.open(path, "b", max_tokens=3) as answer:
            assert b"[DONE]" in b"".join(answer.iter_raw())


def test_a_request_without_a_client_counts_for_its_user(tokenizer, free_port):
    path = "/v1/completions"
    with serving(tokenizer, free_port, LocalClient(endless, tick_s=0.01), max_requests_per_user=1) as server:
        with server.open(path, "a", max_tokens=200) as answer:
            next(answer.iter_raw())
        with server.open(path, "b") as second:
            assert second.status_code == 429
        httpx.delete(f"{server.url}/v1/requests/a").raise_for_status()
        server.until(server.idle)
        with server.open(path, "c", max_tokens=2) as third:
            assert third.status_code == 200
            third.read()
