"""The page's folder under the page's CSP, and as much of the server's HTTP as the page speaks, over fake_model.py.

    PYTHONPATH=tests python -m page.fake_server [--port 8123] [--key SECRET]

The last prompt's words steer it: see fake_model.script_for; `rate N` sends N tokens per second, `fail` ends with an
error on the way, `break` breaks the connection there and loses the answer, `drop` breaks the first connection alone,
`refuse` refuses. By hand it shows the page without a model.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from page.fake_metrics import metrics
from page.fake_model import SIZE, Script, script_for, tokenize
from page.fake_records import Place, explain
from page.fake_streams import ROUTES, KeptStreams, streams_of
from tailrace.api.page_fields import page_fields
from tailrace.api.presets import PRESETS
from tailrace.api.routes.page import FOLDER as PAGE
from tailrace.api.routes.page import HEADERS, TYPES
from tailrace.api.schema.common import PLAIN
from tailrace.api.streaming import json_response


def refused(message: str, param: str | None = None, status: int = 400) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return JSONResponse({"error": error}, status)


def file_of(name: str) -> Response:
    path = (PAGE / name).resolve()
    if not path.is_relative_to(PAGE) or not path.is_file():
        return Response("not found", 404)
    return Response(path.read_bytes(), media_type=TYPES.get(path.suffix, "text/plain"), headers=HEADERS)


async def index(request: Request) -> Response:
    return file_of("index.html")


async def page(request: Request) -> Response:
    return file_of(request.path_params["path"])


async def fields(request: Request) -> Response:
    return json_response(page_fields({"fake": {}}, resumable=True))


async def status(request: Request) -> Response:
    """A server that is ready."""
    health = {"status": "ready", "error": None}
    return JSONResponse({"version": "0", "health": health, "models": ["fake"], "keys": False})


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "fake", "object": "model"}]})


def prompt_of(body: dict[str, Any]) -> tuple[str, str]:
    """(the whole prompt, its last part, which steers)."""
    if "messages" in body:
        texts = [str(message.get("content") or "") for message in body["messages"]]
        return "\n".join(texts), texts[-1]
    return body["prompt"], body["prompt"]


def key_of(body: dict[str, Any]) -> int:
    if "key" in body:
        return int(body["key"], 16)
    return int(body["seed"]) if body.get("seed") is not None else secrets.randbits(63)


def records_of(
    script: Script, body: dict[str, Any], prompt: list[int], options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The answer, token by token."""
    key, output = key_of(body), []
    most = body.get("max_completion_tokens") or body.get("max_tokens") or 10_000
    while len(output) < most:
        place = Place(len(output), len(prompt) + len(output), key, prompt + output)
        record = explain(script, body, place, options, None)
        output.append(record["token_id"])
        if len(output) == most and not record.get("ended"):
            record["ended"] = "length"
        yield record
        if record.get("ended"):
            return


def params_of(body: dict[str, Any]) -> dict[str, Any]:
    """What the answer is computed with: what is given, else the preset's, and the room that is left."""
    given = {name: body[name] for name in PLAIN if body.get(name) is not None}
    room = {"max_tokens": body.get("max_completion_tokens") or body.get("max_tokens") or 10_000}
    return PRESETS.get(body.get("preset", ""), {}) | given | room | {"explain": body["explain"]}


def channel_at(script: Script, index: int) -> str:
    return script.tokens[index][0] if index < len(script.tokens) else "content"


class Texts:
    """Records → deltas of chat, with whole characters only."""

    def __init__(self, script: Script, chat: bool) -> None:
        self.script, self.chat = script, chat
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.called = False

    def delta(self, record: dict[str, Any]) -> dict[str, Any]:
        text = self.decoder.decode(bytes(record["bytes"]))
        channel = channel_at(self.script, record["index"])
        if not text or not self.chat:
            return {"content": text} if text else {}
        if channel == "thought":
            return {"reasoning_content": text}
        if channel == "tool":
            return self.call(text)
        return {"content": text}

    def call(self, text: str) -> dict[str, Any]:
        if not self.called:
            self.called = True
            function = {"name": "get_weather", "arguments": ""}
            return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
        if "tool_call" in text:
            return {}
        return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}


async def generate(request: Request) -> Response:
    """Chat and completions."""
    body = await request.json()
    chat = "messages" in body
    whole, last = prompt_of(body)
    words = last.split()
    if "refuse" in words:
        return refused("temperature must lie between 0 and 1000000, got -1.0", "temperature")
    if any(id >= SIZE for id in body.get("forced_token_ids") or []):
        return refused("forced_token_ids must hold token ids of the model", "forced_token_ids")
    script, prompt = script_for(last), tokenize(whole)
    options = body["explain"] if isinstance(body.get("explain"), dict) else {}
    rate = float(words[words.index("rate") + 1]) if "rate" in words else 0.0
    made = records_of(script, body, prompt, options)
    id = f"{'chatcmpl' if chat else 'cmpl'}-{request.headers.get('x-request-id', 'fake')}"
    head = {
        "id": id,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": int(time.time()),
        "model": "fake",
    }

    first = {"sampling_params": params_of(body)} if body.get("return_sampling_params") else {}

    async def events() -> AsyncIterator[str]:
        texts, begun, count = Texts(script, chat), time.monotonic(), 0
        finish = "stop"
        for record in made:
            count += 1
            if "fail" in words and count == 12:
                yield f"data: {json.dumps({'error': {'message': 'The engine is gone.', 'type': 'server_error'}})}\n\n"
                return
            if "break" in words and count == 12:
                streams_of(request).forget()
                raise OSError("the connection breaks here")
            if record.get("ended") == "length":
                finish = "length"
            delta = texts.delta(record)
            said = {"delta": delta} if chat else {"text": delta.get("content", "")}
            choice = {"index": 0, **said, "explanations": [record], "finish_reason": None}
            said = {**head, "choices": [choice], **(first if count == 1 else {})}
            yield f"data: {json.dumps(said)}\n\n"
            wait = begun + count / rate - time.monotonic() if rate else 0
            await asyncio.sleep(max(wait, 0))
        end = {"delta": {}} if chat else {"text": ""}
        finish = "tool_calls" if texts.called else finish
        yield f"data: {json.dumps({**head, 'choices': [{'index': 0, **end, 'finish_reason': finish}]})}\n\n"
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": len(prompt) + count}
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

    if not body.get("resumable"):
        return StreamingResponse(events(), media_type="text/event-stream")
    streams = streams_of(request)
    streams.start(id, events())
    return StreamingResponse(
        streams.follow(id, breaks_at=11 if {"drop", "break"} & {*words} else 0), media_type="text/event-stream"
    )


async def explain_again(request: Request) -> Response:
    """POST /v1/explain."""
    body = await request.json()
    output = body["output_token_ids"]
    positions = body.get("positions") or list(range(len(output)))
    if any(not 0 <= index < len(output) for index in positions):
        return refused(f"positions must lie between 0 and {len(output) - 1}", "positions")
    whole, last = prompt_of(body)
    script, prompt = script_for(last), tokenize(whole)
    key, options = key_of(body), body.get("explain") or {}
    params = body | body.get("what_if", {})
    records = [
        explain(script, params, Place(index, len(prompt) + index, key, prompt + output[:index]), options, output[index])
        for index in positions
    ]
    return JSONResponse(
        {
            "object": "explanation",
            "id": "explain-1",
            "model": "fake",
            "created": int(time.time()),
            "prompt_token_ids": prompt,
            "explanations": records,
            "consistent": True,
            "first_difference": None,
            "verdict": "Each token is what these parameters draw.",
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(output),
                "total_tokens": len(prompt) + len(output),
            },
        }
    )


async def tokenized(request: Request) -> Response:
    """POST /tokenize, of a prompt."""
    ids = tokenize((await request.json())["prompt"])
    return JSONResponse({"count": len(ids), "max_model_len": 100_000, "tokens": ids})


class Keys:
    """Refuses calls without the key; the page's files are open."""

    def __init__(self, app: Any, key: str) -> None:
        self.app, self.key = app, key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            given = dict(scope["headers"]).get(b"authorization", b"").decode()
            if given != f"Bearer {self.key}":
                return await refused("Incorrect API key provided.", status=401)(scope, receive, send)
        await self.app(scope, receive, send)


def create(key: str = "") -> Any:
    app = Starlette(
        routes=[
            Route("/", index),
            Route("/metrics", metrics),
            Route("/page/fields.json", fields),
            Route("/page/status", status),
            Route("/page/{path:path}", page),
            Route("/v1/models", models),
            Route("/v1/chat/completions", generate, methods=["POST"]),
            Route("/v1/completions", generate, methods=["POST"]),
            Route("/tokenize", tokenized, methods=["POST"]),
            Route("/v1/explain", explain_again, methods=["POST"]),
            *ROUTES,
        ]
    )
    app.state.streams = KeptStreams()
    return Keys(app, key) if key else app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--key", default="")
    told = parser.parse_args()
    uvicorn.run(create(told.key), host="127.0.0.1", port=told.port, log_level="warning")


if __name__ == "__main__":
    main()
