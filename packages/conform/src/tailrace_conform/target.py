"""The server that is judged: sends requests, reads answers to their end, counts both. No answer is judged here.

A request always ends: `timeout_s` bounds the wait for the next bytes, four times it the whole; an answer is left when
it has more bytes, or a stream more events, than what was asked for can have.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from tailrace_conform.errors import ConformError
from tailrace_conform.exchange import Exchange, StreamEvent

KEPT = 32  # exchanges without a proper answer that are kept
LARGEST = 64 << 20  # bytes of an answer
EVENTS, EVENTS_PER_TOKEN = 64, 4  # of a stream, at most: some servers send a token in several
NOBODY = "nobody answers there"
# What went wrong below HTTP, in words; the first that fits.
FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (httpx.ConnectError, NOBODY),
    (httpx.InvalidURL, "the address is no URL"),
    (httpx.UnsupportedProtocol, "the address is no URL"),
    (httpx.DecodingError, "the body's compression can't be read"),
    (httpx.LocalProtocolError, "the request can't be sent as HTTP"),
    (httpx.RemoteProtocolError, "the connection was closed before the answer was whole, or it is no HTTP"),
    (Exception, "the connection broke off"),
)


class TargetServer:
    """base_url: with its version ("http://host:8000/v1"). concurrency: requests at once, at most. timeout_s: seconds
    without a byte until a request counts as hanging."""

    def __init__(
        self, base_url: str, model: str = "", api_key: str = "", concurrency: int = 8, timeout_s: float = 60.0
    ) -> None:
        """Raises ConformError where one of them can't be."""
        check_target(base_url, concurrency, timeout_s)
        self.base_url, self.model, self.timeout_s = base_url.rstrip("/"), model, timeout_s
        self.num_requests, self.num_tokens = 0, 0
        self.gone = False  # nobody took the last connection
        self.unanswered: list[Exchange] = []  # 5xx, broken connections, timeouts: the first KEPT
        self.on_request: Callable[[], None] = lambda: None
        self._has_key = bool(api_key)
        self._places = asyncio.Semaphore(concurrency)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # a server may close an idle connection just when it is used again, as after a 500: not the request's fault
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        verify = not base_url.startswith("http:")  # to load the certificates takes longer than a law
        self.http = httpx.AsyncClient(headers=headers, timeout=timeout_s, limits=limits, trust_env=False, verify=verify)

    async def close(self) -> None:
        await self.http.aclose()

    async def request(
        self,
        path: str,
        body: Any = None,
        method: str = "",
        *,
        crowded: bool = False,
        root: str = "",
        wrong: bool = False,
    ) -> Exchange:
        """Send a request and read its answer, as a stream where the body asks for one.

        body: sent as JSON; a text is sent as it is; None: a GET, unless method says otherwise. crowded: not counted
        among those at once, where a law wants more than the user's limit (still bounded by the law). root: in
        place of base_url. wrong: nobody can serve it, so it is no fault of the server that it gets no answer.
        """
        streamed = isinstance(body, dict) and body.get("stream") is True
        made = Exchange(method or ("GET" if body is None else "POST"), path, body, streamed, self._has_key)
        if crowded:
            await self._send(made, root)
        else:
            async with self._places:
                await self._send(made, root)
        self._count(made, wrong)
        return made

    async def hold(self, path: str, body: dict[str, Any], leave: asyncio.Event, held: list[Exchange]) -> Exchange:
        """Open a stream, read on until `leave` is set, and close the connection. The exchange joins `held` when the
        first event is there."""
        made = Exchange("POST", path, body, True, self._has_key)
        reading = asyncio.create_task(self._send(made, ""))
        while not made.events and not reading.done() and not leave.is_set():
            await asyncio.sleep(0.02)
        held.append(made)
        leaving = asyncio.create_task(leave.wait())
        await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, leaving):
            task.cancel()
        await asyncio.gather(reading, leaving, return_exceptions=True)
        self.num_requests += 1
        self.on_request()
        return made

    async def _send(self, made: Exchange, root: str) -> None:
        """Fill an exchange in. What goes wrong below HTTP becomes its `failure`."""
        begun = time.monotonic()
        content = made.body if isinstance(made.body, str) else json.dumps(made.body)
        kwargs: dict[str, Any] = {"content": content.encode(errors="surrogatepass")} if made.method == "POST" else {}
        headers = {"Content-Type": "application/json"} if made.method == "POST" else {}
        try:
            async with (
                asyncio.timeout(4 * self.timeout_s),
                self.http.stream(made.method, (root or self.base_url) + made.path, headers=headers, **kwargs) as answer,
            ):
                made.status, made.headers = answer.status_code, dict(answer.headers)
                await read(answer, made, begun)
        except httpx.TimeoutException:
            made.failure = f"nothing came for {self.timeout_s:g} s"
        except TimeoutError:
            made.failure = f"no end after {4 * self.timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            made.failure = next(words for kind, words in FAILURES if isinstance(error, kind))
        made.elapsed_s = time.monotonic() - begun
        made.parsed = parse(made.text)

    def _count(self, made: Exchange, wrong: bool) -> None:
        self.num_requests += 1
        self.gone = made.failure == NOBODY
        failed = made.failure or (made.status >= 500 and made.status != 501)
        if failed and not wrong and len(self.unanswered) < KEPT:
            self.unanswered.append(made)
        bodies = [event.parsed for event in made.events] or [made.parsed]
        for body in bodies:
            if isinstance(body, dict) and isinstance(body.get("usage"), dict):
                count = body["usage"].get("completion_tokens")
                self.num_tokens += count if isinstance(count, int) else 0
                break
        self.on_request()


def check_target(url: str, concurrency: int, timeout_s: float) -> None:
    """Raise ConformError unless url is the base URL of a server, and the other two are in their ranges."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number up to 65,535
        fits = False
    if not fits:
        raise ConformError(f"the server's base URL must be as http://host:8000/v1, got {url or 'none'}")
    if concurrency < 1:
        raise ConformError(f"concurrency must be at least 1, got {concurrency}")
    if not 0 < timeout_s < math.inf:
        raise ConformError(f"timeout must be a number of seconds above 0, got {timeout_s:g}")


async def read(answer: httpx.Response, made: Exchange, begun: float) -> None:
    """Take in the body; of an event stream each event with the time of its arrival. An answer that is too large to be
    one becomes a failure."""
    events = "text/event-stream" in answer.headers.get("content-type", "")
    most = most_events(made.body)
    parts: list[bytes] = []
    size, rest = 0, b""
    data: list[str] = []
    try:
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > LARGEST:
                made.failure = f"no end after {LARGEST >> 20} MiB"
            if len(made.events) > most:
                made.failure = f"no end after {most:g} events, far more than max_tokens allows"
            if made.failure:
                break
            if not events:
                continue
            *lines, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n")
            for line in lines:
                take_line(line, data, made, time.monotonic() - begun)
    finally:
        made.raw = b"".join(parts)


def most_events(body: Any) -> float:
    """How many events a stream of this request may have."""
    if not isinstance(body, dict):
        return math.inf
    tokens, count = body.get("max_tokens"), body.get("n", 1)
    return EVENTS + EVENTS_PER_TOKEN * tokens * count if type(tokens) is int and type(count) is int else math.inf


def take_line(line: bytes, data: list[str], made: Exchange, after_s: float) -> None:
    """One line of an event stream: a field, a comment, or the empty line that ends an event."""
    if line.startswith(b":"):
        made.comments += 1
    elif line.startswith(b"data:"):
        data.append(line[5:].decode(errors="replace").removeprefix(" "))
    elif not line and data:
        text = "\n".join(data)
        made.events.append(StreamEvent(text, after_s, parse(text)))
        data.clear()


def parse(text: str) -> Any:
    """The JSON of a text, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
