"""What a hostile client does: bytes as they go out, with pauses, and how it leaves. And what came back, judged.

Knows no kind of abuse and no library of HTTP: those are too polite.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

HOST = "127.0.0.1"
READ_BYTES = 1 << 16
UNAVAILABLE = {"not_ready", "machine_busy", "engine_overloaded", "rate_limit_exceeded"}  # a 503 by design
Then = Literal["read", "half", "close", "reset"]
Piece = bytes | float


@dataclass(frozen=True)
class Attempt:
    """One request, or several at once.

    Attributes:
        pieces: what goes out; a number is a pause in seconds. then: "read" waits for the answer; "half" does, with its
            own side shut; "close" and "reset" leave. after: bytes of the answer that it waits for before it leaves.
            field: what an error must name;
            None: any field, "": none need be named. beside: further attempts, sent at the same time, whose answers are
                not looked at.
    """

    pieces: tuple[Piece, ...]
    then: Then = "read"
    after: int = 0
    field: str | None = None
    beside: tuple[Attempt, ...] = ()


class Kind(NamedTuple):
    """A kind of abuse, as data.

    Attributes:
        name: unique. make: (chance, number of the variant) → an attempt. right: statuses that are right; 0 is a
            connection that ends without an answer. why: what it could break. bound_ms: what it may add to the time
            between others' tokens.
        limit_s: after which an answer counts as none.
    """

    name: str
    make: Callable[[Random, int], Attempt]
    right: frozenset[int]
    why: str
    bound_ms: float = 50.0
    limit_s: float = 300.0


@dataclass
class Answer:
    """What came back: the status (0: none), the headers and the body without its chunks, seconds until the end, and
    whether it hung."""

    status: int = 0
    head: bytes = b""
    body: bytes = b""
    seconds: float = 0.0
    hung: bool = False
    wrong: list[str] = field(default_factory=list)


# ---- making attempts


def raw(*pieces: Piece | str, then: Then = "read", after: int = 0, field: str | None = "") -> Attempt:
    """Bytes as they are."""
    return Attempt(tuple(p.encode() if isinstance(p, str) else p for p in pieces), then, after, field)


def head(path: str, length: int | None, *lines: str, method: str = "POST", host: str = HOST) -> bytes:
    """Of an HTTP request on a connection of its own. length: of the body; None: not said."""
    said = [] if length is None else [f"content-length: {length}"]
    typed = [] if any(line.lower().startswith("content-type") for line in lines) else ["content-type: application/json"]
    whole = [f"{method} {path} HTTP/1.1", f"host: {host}", *typed, "connection: close", *said, *lines, "", ""]
    return "\r\n".join(whole).encode("utf-8", "surrogateescape")


def post(path: str, body: Any, *lines: str, then: Then = "read", after: int = 0, field: str | None = None) -> Attempt:
    """A POST of JSON, or of bytes as they are."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Attempt((head(path, len(payload), *lines), payload), then, after, field)


def complete(prompt: Any = "Once upon a time", *, named: str | None = None, **fields: Any) -> Attempt:
    """A completion. named: the field that an error must name."""
    return post("/v1/completions", {"max_tokens": 8, "prompt": prompt} | fields, field=named)


def chat(content: Any = "Hello", *, named: str | None = None, **fields: Any) -> Attempt:
    """A chat of one turn, or of the messages given."""
    asked = {"max_tokens": 8, "messages": [{"role": "user", "content": content}]} | fields
    return post("/v1/chat/completions", asked, field=named)


def respond(given: Any = "Hello", *, named: str | None = None, **fields: Any) -> Attempt:
    """A response, which is not stored unless the fields say so."""
    return post("/v1/responses", {"max_output_tokens": 8, "input": given, "store": False} | fields, field=named)


def message(content: Any = "Hello", *, named: str | None = None, **fields: Any) -> Attempt:
    """A message in Anthropic's form: one turn, or the messages given."""
    asked = {"max_tokens": 8, "messages": [{"role": "user", "content": content}]} | fields
    return post("/v1/messages", asked, field=named)


# ---- sending them


async def send(port: int, attempt: Attempt, limit_s: float) -> Answer:
    """The answer to the attempt itself, however it ends."""
    beside = [asyncio.ensure_future(send(port, other, limit_s)) for other in attempt.beside]
    answer, start = Answer(), time.perf_counter()
    try:
        async with asyncio.timeout(limit_s):
            whole = await exchange(port, attempt)
    except TimeoutError:
        answer.hung = True
    else:
        last = max(0, whole.rfind(b"HTTP/1.1 "))  # of several on one connection, and behind a 100
        answer.head, _, payload = whole[last:].partition(b"\r\n\r\n")
        with contextlib.suppress(ValueError, IndexError):
            answer.status = int(answer.head.split(b" ", 2)[1])
        chunked = b"transfer-encoding: chunked" in answer.head.lower()
        answer.body = unchunked(payload) if chunked else payload
    answer.seconds = time.perf_counter() - start
    for other in await asyncio.gather(*beside):
        answer.hung |= other.hung
    return answer


async def exchange(port: int, attempt: Attempt) -> bytes:
    """Everything that comes back; what the server cuts off is not an error here."""
    reader, writer = await asyncio.open_connection(HOST, port)
    got = bytearray()
    try:
        for piece in attempt.pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            else:
                await asyncio.sleep(piece)
        if attempt.then == "half":
            writer.write_eof()
        leaves = attempt.then in ("close", "reset")
        while (not leaves or len(got) < attempt.after) and (piece := await reader.read(READ_BYTES)):
            got += piece
    except (ConnectionError, OSError):  # refused in the middle: what it said before may still be there
        with contextlib.suppress(ConnectionError, OSError):
            while piece := await reader.read(READ_BYTES):
                got += piece
    finally:
        if attempt.then == "reset":
            writer.transport.abort()
        else:
            writer.close()
    return bytes(got)


def unchunked(payload: bytes) -> bytes:
    """The body behind its chunks, as far as it goes."""
    text, at = bytearray(), 0
    while at < len(payload):
        size, _, _ = payload[at:].partition(b"\r\n")
        begin = at + len(size) + 2
        try:
            length = int(size, 16)
        except ValueError:
            break
        text += payload[begin : begin + length]
        at = begin + length + 2
    return bytes(text)


# ---- judging what came back


def judge(kind: Kind, attempt: Attempt, answer: Answer) -> list[str]:
    """What is wrong with the answer; nothing if all is right."""
    if answer.hung:
        return [f"no answer within {kind.limit_s:g} s"]
    if attempt.then in ("close", "reset"):
        return []
    if answer.status not in kind.right:
        return [f"status {answer.status}: {answer.body[:300]!r}"]
    if answer.status == 0:
        return []
    if answer.status == 200:
        return wrong_success(answer)
    return wrong_error(answer, attempt.field)


def wrong_success(answer: Answer) -> list[str]:
    """An answer is whole JSON; a stream is whole events that end with [DONE] or an error that is the caller's fault."""
    if b"application/json" in answer.head.lower():
        try:
            json.loads(answer.body)
        except ValueError:
            return [f"no JSON: {answer.body[:200]!r}"]
        return []
    if b"text/event-stream" not in answer.head.lower():
        return []
    said = [line[6:] for line in answer.body.decode().split("\n") if line.startswith("data: ")]
    try:
        events = [json.loads(line) for line in said if line != "[DONE]"]
    except ValueError as error:
        return [f"an event is no JSON: {error}"]
    failed = [event["error"] for event in events if event.get("error")]
    if any(error.get("type") != "invalid_request_error" for error in failed):
        return [f"failed in the middle: {failed}"]
    last = str(events[-1].get("type", "")) if events else ""
    ended = said[-1:] == ["[DONE]"] or last.startswith("response.") or last == "message_stop"
    return [] if ended or failed else [f"the stream does not end: {said[-1:]}"]


def wrong_error(answer: Answer, field: str | None) -> list[str]:
    """OpenAI's shape or Anthropic's, with the field at fault, or the body where it is at fault as a whole. Of a 5xx
    only the 503 by design is right."""
    try:
        problem = json.loads(answer.body)["error"]
        details = problem.get("details", problem)
        message, param = problem["message"], details["param"]
        code = details["error_code" if "details" in problem else "code"]
    except (ValueError, KeyError, TypeError):
        return [f"{answer.status} without OpenAI's or Anthropic's shape: {answer.body[:200]!r}"]
    if answer.status >= 500 and code not in UNAVAILABLE:
        return [f"{answer.status} {code}: {message}"]
    if not message or len(message) > 2000:
        return [f"a message of {len(message)} characters"]
    of_all = message.startswith("the body")
    if answer.status == 400 and field is None and not param and not of_all:
        return [f"no field is named: {message[:200]}"]
    if answer.status == 400 and field and not of_all and not str(param).startswith(field):
        return [f"names {param!r}, not {field!r}: {message[:200]}"]
    return []


def statuses(*values: int) -> frozenset[int]:
    """A set of them."""
    return frozenset(values)


REFUSED = statuses(400)
EITHER = statuses(200, 400)
FINE = statuses(200)
TOO_MUCH = statuses(400, 413)


def listed(chance: Random, values: Sequence[Any], number: int) -> Any:
    """The variant's own out of a list, in turn; chance decides only where there are more variants than entries."""
    return values[number] if number < len(values) else chance.choice(values)
