"""The front end that `python -m bench.egress` compares ours with: the work of the best-known server's API process.

Newly written after vLLM's published design, under the same starlette and uvicorn with uvloop. Engine process, ZeroMQ
client and model are ours.

- In the loop over a step's outputs: DecodeStream.step per token, `str.find` of every stop over the tail, a hold-back as
  wide as the longest stop, one output object per request. The object is put where the request's task waits, and merged
  with one that the task has not fetched yet.
- In the request's task: pydantic models (chunk, choice, delta) per output, model_dump_json(exclude_unset=True), one
  event, one write. With logprobs the tokenizer's decode, and a pydantic model per token and alternative.
- The heap is frozen after the start.

Left out, in its favour: FastAPI around starlette, transformers around the tokenizer, validators on every model, the
conversion of logprobs to dicts, statistics and metrics per step. It serves streamed chat completions and /health only.

`python -m bench.server.baseline FLAGS` takes the flags of `tailrace serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import tokenizers
import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tokenizers.decoders import DecodeStream

from tailrace.api.serve import uvicorn_config
from tailrace.cli.flags import add_config_flags, read_config
from tailrace.cli.local import prepare
from tailrace.config import SECTIONS
from tailrace.params import SamplingParams
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.async_stream import AsyncStream
from tailrace.wire.messages import Finished, TokenLogprobs, Tokens
from tailrace.wire.stream_table import OpenStream

FLOOR = -9999.0  # stands for −inf


class Top(BaseModel):
    token: str
    logprob: float = FLOOR
    bytes: list[int] | None = None


class Logprob(Top):
    top_logprobs: list[Top] = []


class BaselineLogprobs(BaseModel):
    content: list[Logprob] | None = None


class BaselineDelta(BaseModel):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class BaselineChoice(BaseModel):
    index: int
    delta: BaselineDelta
    logprobs: BaselineLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class Chunk(BaseModel):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[BaselineChoice]
    usage: dict[str, int] | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None


def logprobs_of(
    backend: tokenizers.Tokenizer, ids: Iterable[int], entries: Iterable[TokenLogprobs]
) -> BaselineLogprobs:
    """The logprobs in the answer's format."""

    def named(id: int, logprob: float) -> dict[str, Any]:
        token = backend.decode([id], skip_special_tokens=False)
        return {"token": token, "logprob": max(logprob, FLOOR), "bytes": list(token.encode())}

    content = []
    for id, entry in zip(ids, entries, strict=True):
        tops = [Top(**named(i, p)) for i, p in zip(entry.top_ids, entry.top_logprobs, strict=True)]
        content.append(Logprob(**named(id, entry.logprob), top_logprobs=tops))
    return BaselineLogprobs(content=content)


class Text:
    """The text of one sequence: `push` ids, `take` text."""

    def __init__(self, backend: tokenizers.Tokenizer, stops: tuple[str, ...]) -> None:
        self._backend, self._stops = backend, stops
        self._stream = DecodeStream(skip_special_tokens=True)
        self._width = max(map(len, stops), default=1) - 1
        self._text, self._sent = "", 0

    def push(self, ids: Iterable[int]) -> bool:
        """Add ids. True if they complete a stop string; the text then ends before it."""
        before = len(self._text)
        for id in ids:
            self._text += self._stream.step(self._backend, id) or ""
        for stop in self._stops:
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self._text = self._text[:at]
                return True
        return False

    def take(self, finished: bool) -> str:
        """The new text that can be sent."""
        begin = self._sent
        self._sent = max(begin, len(self._text) - (0 if finished else self._width))
        return self._text[begin : self._sent]


@dataclass(slots=True)
class Output:
    """What a step brought for one request."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str | None = None

    def add(self, later: Output) -> None:
        """Two outputs merged into one."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.finish_reason = later.finish_reason


class Outputs:
    """The outputs of one request: a queue of length one. The client's stream table calls `take` in its loop over the
    requests of a frame."""

    def __init__(self, stream: AsyncStream, text: Text) -> None:
        self._open_stream, self._text = stream._open_stream, text
        self._open_stream.wake = self.take
        self._waiting: Output | None = None
        self._ready = asyncio.Event()

    def take(self, _: OpenStream) -> None:
        """Turn the tokens that have arrived into an output."""
        output = Output("", [], [])
        for message in self._open_stream.take():
            if isinstance(message, Tokens):
                output.token_ids += message.token_ids
                output.logprobs += message.logprobs or ()
            else:
                output.finish_reason = message.reason if isinstance(message, Finished) else "error"
        if self._text.push(output.token_ids):
            output.finish_reason = "stop"
            self._open_stream.wake = lambda _: None  # nobody needs what comes after it
        output.text = self._text.take(finished=output.finish_reason is not None)
        if self._waiting is None:
            self._waiting = output
            self._ready.set()
        else:
            self._waiting.add(output)

    async def get(self) -> Output:
        """Everything since the last call."""
        while (output := self._waiting) is None:
            await self._ready.wait()
        self._waiting = None
        self._ready.clear()
        return output


async def answer(
    stream: AsyncStream, outputs: Outputs, backend: tokenizers.Tokenizer, with_logprobs: bool, model: str
) -> AsyncGenerator[str, None]:
    """The events of one request."""
    head: Any = {"id": f"chatcmpl-{stream.id}", "object": "chat.completion.chunk", "created": int(time.time())}
    count, reason = 0, None

    def event(choices: list[BaselineChoice], **fields: Any) -> str:
        chunk = Chunk(**head, model=model, choices=choices, **fields)
        return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"

    try:
        while reason is None:
            output = await outputs.get()
            if not count:
                greeting = BaselineDelta(role="assistant", content="")
                yield event([BaselineChoice(index=0, delta=greeting, logprobs=None, finish_reason=None)])
            count, reason = count + len(output.token_ids), output.finish_reason
            logprobs = logprobs_of(backend, output.token_ids, output.logprobs) if with_logprobs else None
            yield event(
                [
                    BaselineChoice(
                        index=0, delta=BaselineDelta(content=output.text), logprobs=logprobs, finish_reason=reason
                    )
                ]
            )
        yield event([], usage={"completion_tokens": count})
        yield "data: [DONE]\n\n"
    finally:
        stream.abort()


def create_app(client: AsyncClient, tokenizer: Tokenizer, model: str) -> Starlette:
    """The application. It listens once the engine is ready."""

    async def chat(request: Request) -> Response:
        ask = await request.json()
        given = {name: ask[name] for name in ("temperature", "max_tokens", "ignore_eos")}
        params = SamplingParams(**given, stop=tuple(ask["stop"]), logprobs=ask.get("top_logprobs"))
        stream = client.submit(tokenizer.encode_chat(ask["messages"]), params)
        outputs = Outputs(stream, Text(tokenizer.backend, params.stop))
        events = answer(stream, outputs, tokenizer.backend, params.logprobs is not None, model)
        return StreamingResponse(events, media_type="text/event-stream")

    async def health(request: Request) -> Response:
        return Response(status_code=200 if client.ready else 503)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await client.start()
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            await client.close()

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="python -m bench.server.baseline")
    add_config_flags(parser, SECTIONS)
    prepared = prepare(read_config(parser.parse_args()))
    client = AsyncClient(prepared.config.engine, prepared.config.server.start_timeout_s, pauses=False)
    app = create_app(client, prepared.tokenizer, prepared.name)
    uvicorn.Server(uvicorn_config(app, prepared.config.server)).run()


if __name__ == "__main__":
    main()
