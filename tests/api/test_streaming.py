"""Frames, the order of a stream's end, and two whole transcripts, byte for byte."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from api.harness import LocalClient, events, front_of, saying
from tailrace.api import streaming
from tailrace.api.streaming import COMMENT, EventStream, Silence, frame_chunk
from tailrace.errors import EngineError


class Chunk(msgspec.Struct):
    text: str


class Begun:
    """A generation that notes its end, and the request that asked for it."""

    def __init__(self) -> None:
        self.begun, self.ended, self.closed = False, False, False
        config = SimpleNamespace(keep_alive_s=60.0)
        self.app = SimpleNamespace(state=SimpleNamespace(front=SimpleNamespace(config=config)))

    async def chunks(self):
        try:
            self.begun = True
            yield Chunk("first")
            await asyncio.sleep(3600)
        finally:
            self.closed = True

    async def fold(self, chunks: Any) -> Any:
        raise AssertionError("the answer is streamed")

    async def receive(self):
        await asyncio.sleep(3600)

    def abort(self, cause: str) -> None:
        self.ended = True

    def describe_wait(self) -> str:
        return ""


@pytest.mark.parametrize("turns", range(8))
async def test_a_generation_ends_whenever_its_caller_is_cancelled(turns: int):
    """Also in the turn of the loop in which its first chunk comes."""
    begun: Any = Begun()
    asked = asyncio.ensure_future(streaming.make_response(begun, begun, begun.chunks(), begun.fold, True))
    for _ in range(turns):
        await asyncio.sleep(0)
    asked.cancel()
    [answer] = await asyncio.gather(asked, return_exceptions=True)
    if isinstance(answer, asyncio.CancelledError):
        assert begun.ended or not begun.begun
        assert begun.closed or not begun.begun


def test_a_frame_holds_no_raw_line_break():
    assert frame_chunk(Chunk("a\n\nb\r\u2028")) == 'data: {"text":"a\\n\\nb\\r\u2028"}\n\n'.encode()


class Wire:
    """An ASGI connection that nobody leaves."""

    def __init__(self) -> None:
        self.sent: list[dict] = []

    async def receive(self) -> dict:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: dict) -> None:
        self.sent.append(message)

    @property
    def body(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent).decode()


async def first(delay_s: float = 0.0) -> Chunk:
    await asyncio.sleep(delay_s)
    return Chunk("first")


async def run(rest, delay_s: float = 0.0, keep_alive_s: float = 60.0) -> Wire:
    wire = Wire()
    stream = EventStream(asyncio.ensure_future(first(delay_s)), rest, lambda: None, Silence(keep_alive_s))
    await stream({"type": "http"}, wire.receive, wire.send)
    assert wire.sent[0]["type"] == "http.response.start"
    assert [m["more_body"] for m in wire.sent[1:]] == [True] * (len(wire.sent) - 2) + [False]
    return wire


async def test_done_only_after_the_last_chunk():
    async def rest():
        yield Chunk("second")

    assert events((await run(rest())).body) == [{"text": "first"}, {"text": "second"}, "[DONE]"]


async def test_case_26_comments_fill_silences_between_frames_and_end_with_the_stream(leaps, monkeypatch):
    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=leaps))

    async def rest():
        await asyncio.sleep(0.08)
        yield Chunk("second")
        for _ in range(200):  # no silence, no comment
            await asyncio.sleep(0)
            yield Chunk("more")

    wire = await run(rest(), delay_s=0.08, keep_alive_s=0.02)
    parts = [m["body"] for m in wire.sent[1:]]
    comments = [i for i, part in enumerate(parts) if part == COMMENT]
    frames = [part for part in parts if part != COMMENT]
    assert all(part.startswith(b"data: ") and part.endswith(b"\n\n") for part in frames)
    assert parts.index(frames[0]) in range(2, 6)  # comments before the first chunk
    assert parts.index(frames[1]) - parts.index(frames[0]) in range(2, 6)
    assert max(comments) < parts.index(frames[1])
    assert parts[-1] == b"data: [DONE]\n\n"
    await asyncio.sleep(0.05)
    assert len(wire.sent) == len(parts) + 1


@pytest.mark.parametrize(
    ("error", "code"), [(EngineError("it broke"), "engine_error"), (KeyError("x"), "internal_error")]
)
async def test_an_error_is_the_last_event_and_not_done(error, code):
    closed = []

    async def rest():
        try:
            yield Chunk("second")
            raise error
        finally:
            closed.append(True)

    *chunks, last = events((await run(rest())).body)
    assert chunks == [{"text": "first"}, {"text": "second"}]
    assert last["error"]["code"] == code
    assert closed


def settled(transcript: str) -> str:
    """A transcript without what differs from run to run."""
    transcript = re.sub(r'"created":\d+', '"created":0', transcript)
    return re.sub(r'"system_fingerprint":"fp_[0-9a-f]+"', '"system_fingerprint":"fp"', transcript)


CHAT = """\
data: {"id":"chatcmpl-g","object":"chat.completion.chunk","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-g","object":"chat.completion.chunk","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"delta":{"content":"h"},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-g","object":"chat.completion.chunk","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-g","object":"chat.completion.chunk","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":null}

data: {"id":"chatcmpl-g","object":"chat.completion.chunk","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":4,"total_tokens":25,"prompt_tokens_details":\
{"cached_tokens":0}}}

data: [DONE]

"""

COMPLETION = """\
data: {"id":"cmpl-g","object":"text_completion","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"text":"x=","logprobs":null,"finish_reason":null}]}

data: {"id":"cmpl-g","object":"text_completion","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"text":"h","logprobs":null,"finish_reason":null}]}

data: {"id":"cmpl-g","object":"text_completion","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"text":"é","logprobs":null,"finish_reason":null}]}

data: {"id":"cmpl-g","object":"text_completion","created":0,"model":"scripted","system_fingerprint":"fp",\
"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null}]}

data: [DONE]

"""


async def test_golden_transcripts(tokenizer):
    async with front_of(LocalClient(saying("hé".encode()), tick_s=0.05), tokenizer) as front:
        chat = await front.chat(stream=True, stream_options={"include_usage": True}, request_id="g")
        assert settled(chat.text) == CHAT
        completion = await front.complete(stream=True, echo=True, max_tokens=3, request_id="g")
        assert settled(completion.text) == COMPLETION
