"""A scripted OpenAI server without a model, which keeps every law; with `fault=NAME` it breaks one (faults.py).

It is written independently of tailrace: neither its server nor its sampler is imported.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from scripted_server.fields import CONTEXT, BadRequest, check
from scripted_server.generation import ANSWERS, THOUGHTS, Part, Plan, bound_text, choice_parts
from scripted_server.http_frame import Asked, Events, HttpFrame, Plain
from scripted_server.script import encode
from scripted_server.shapes import Shape

MODEL = "scripted"
PLACES = 32  # requests that run at once
LONG, STEP_S = 500, 0.01  # without metrics each request that asks for so many tokens makes a token so much later
GONE_STAY = ("gone-goes-on", "gone-unseen")


class HonestServer:
    """`async with HonestServer() as server: server.url`. thinking: every chat is thought about first. late_s: so old
    are the metrics. defaults: of fields that are not given, as a model may have its own."""

    def __init__(
        self,
        fault: str = "",
        metrics: bool = True,
        thinking: bool = False,
        late_s: float = 0.0,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.fault, self.metrics, self.thinking = fault, metrics and fault != "gone-unseen", thinking
        self.defaults = defaults or {}
        self.late_s, self.history = late_s, [(0.0, 0)]  # when, how many ran from then on
        self.num_running, self.num_long, self.num_made, self.num_refused = 0, 0, 0, 0
        self.prompts: list[int] = []  # tokens of the prompts that run
        self._places = asyncio.Semaphore(PLACES)
        self._frame = HttpFrame(self.handle)
        self._random = random.Random(1)

    async def __aenter__(self) -> HonestServer:
        await self._frame.__aenter__()
        self.url = self._frame.url + "/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._frame.__aexit__(*exc)

    async def handle(self, asked: Asked) -> Plain | Events:
        routes = {"/v1/completions": False, "/v1/chat/completions": True}
        if asked.path == "/v1/models" and self.fault == "models-fail":
            return Plain("no cache", 500)
        if asked.path == "/v1/models":
            return Plain({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "x"}]})
        if asked.path == "/metrics" and self.metrics:
            then = time.monotonic() - self.late_s
            return Plain(f"vllm:num_requests_running {next(n for at, n in reversed(self.history) if at <= then)}\n")
        try:
            if asked.path not in routes or (self.fault == THOUGHTS and not routes[asked.path]):
                status = 200 if self.fault == "unknown-path-200" else 404
                raise BadRequest(f"no such path: {asked.path}", status=status)
            if asked.method != "POST":
                raise BadRequest("use POST", status=405)
            return await self._generate(asked, routes[asked.path])
        except BadRequest as error:
            self.num_refused += 1
            if self.fault == "refusals-in-stream" and b'"stream": true' in asked.body:
                return Events(refused_late(error))
            return self._refusal(error)

    def _refusal(self, error: BadRequest) -> Plain:
        message, param = str(error), error.param
        if self.fault == "errors-unnamed":
            message, param = "invalid request", None
        if self.fault == "errors-are-500" and error.param == "body":
            return Plain({"error": {"message": message, "type": "server_error", "param": None, "code": None}}, 500)
        if self.fault == "errors-are-text":
            return Plain(message, error.status)
        kind = "invalid_request_error"
        return Plain({"error": {"message": message, "type": kind, "param": param, "code": None}}, error.status)

    async def _generate(self, asked: Asked, chat: bool) -> Plain | Events:
        try:
            body = json.loads(asked.body, parse_constant=lambda name: name)
        except (ValueError, RecursionError):
            if self.fault == "bad-json-hangs":
                await asyncio.sleep(3600)
            if self.fault == "crashes-at-nesting" and len(asked.body) > 100_000:
                return Plain("deep", 500)
            raise BadRequest("the body is no valid JSON", "body") from None
        params = {**self.defaults, **check(body, chat, self.fault)}
        if params["model"] != MODEL and self.fault != "any-model":
            raise BadRequest(f"model: there is no {params['model']}", "model", 404)
        if self.fault == "logprobs-ignored":
            params = {name: value for name, value in params.items() if "logprobs" not in name}
        plan = self._plan(params, chat)
        shape = Shape(params, chat, f"request-{self.num_made}", self.fault)
        self.num_made += 1
        if self.fault == "fails-at-times" and self.num_made % 23 == 0:
            return Plain({"error": {"message": "something failed", "type": "server_error"}}, 500)
        if params.get("stream") and self.fault != "stream-ignored":
            return Events(self._events(plan, shape, asked))
        return await self._whole(plan, shape, asked)

    def _plan(self, params: dict[str, Any], chat: bool) -> Plan:
        """Checks that take more than one field, and what the request is bound to."""
        text = params["prompt"] if not chat else "\n".join(one["content"] for one in params["messages"]) + "\n"
        prompt = encode(text[-8 * CONTEXT :])  # more can't fit: no piece has as many bytes
        seed = params.get("seed", self._random.getrandbits(60))
        plan = Plan(
            params,
            prompt,
            seed,
            self.fault,
            num_running=lambda: self.num_running,
            longest_prompt=lambda: max(self.prompts, default=0),
        )
        if len(prompt) + plan.max_tokens > CONTEXT:
            if self.fault != "prompt-truncated":
                named = "messages" if chat else "prompt"
                raise BadRequest(f"{named} and max_tokens: more than the context of {CONTEXT} tokens", named)
            plan.prompt = prompt[-64:]
            params["max_tokens"] = min(plan.max_tokens, 64)
        rng = random.Random(zlib.crc32(repr((seed, params.get("temperature", 1))).encode()))
        plan.forced = bound_text(params, rng, self.fault)
        if chat and "tools" in params and self.fault not in (*ANSWERS, THOUGHTS):
            self._call(plan, rng)
        if self.fault == THOUGHTS:
            plan.thoughts = CONTEXT
        elif chat and (self.thinking or "reasoning_effort" in params):
            plan.thoughts = 5
        return plan

    def _call(self, plan: Plan, rng: random.Random) -> None:
        """Whether a function is called, and with which arguments."""
        asked = plan.params.get("tool_choice", "auto")
        functions = {one["function"]["name"]: one["function"] for one in plan.params["tools"]}
        if isinstance(asked, dict):
            name = asked.get("function", {}).get("name")
            if name not in functions:
                raise BadRequest("tool_choice names no function of tools", "tool_choice")
        elif asked == "none" and self.fault != "tool-choice-none-ignored":
            return
        else:
            name = rng.choice(sorted(functions))
        if self.fault == "tool-choice-ignored":
            return
        schema = functions[name].get("parameters", {"type": "object"})
        plan.forced = bound_text(
            {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}, rng, ""
        )
        if self.fault == "arguments-unclosed":
            plan.forced = str(plan.forced)[:-1]
        plan.call = "other" if self.fault == "call-misnamed" else name

    # ---- answers

    async def _parts(self, plan: Plan, asked: Asked) -> AsyncIterator[tuple[int, Part]]:
        """The parts of all choices in turn; ends where the client has left."""
        async with self._places:
            long = plan.max_tokens >= LONG
            self._count(1, long)
            self.prompts.append(len(plan.prompt))
            try:
                count = plan.params.get("n", 1)
                if self.fault == "n-one-less" and count > 1:
                    count -= 1
                waiting = [(index, choice_parts(plan, index)) for index in range(count)]
                while waiting:
                    for index, parts in list(waiting):
                        part = await anext(parts, None)
                        if part is None:
                            waiting.remove((index, parts))
                        else:
                            yield index, part
                        await asyncio.sleep(0 if self.metrics and not self.late_s else STEP_S * self.num_long)
                    if asked.gone():
                        return
            finally:
                if not (self.fault in GONE_STAY and asked.gone()):
                    self._count(-1, long)
                self.prompts.remove(len(plan.prompt))

    def _count(self, change: int, long: bool) -> None:
        self.num_running += change
        self.num_long += change * long
        self.history.append((time.monotonic(), self.num_running))

    async def _whole(self, plan: Plan, shape: Shape, asked: Asked) -> Plain:
        choices: dict[int, list[Part]] = {}
        async for index, part in self._parts(plan, asked):
            if self.fault == "cut-character-unsent" and part.finish == "length":
                part = replace(part, text=part.text + "\ufffd")
            choices.setdefault(index, []).append(part)
        if not choices or not all(parts[-1].finish for parts in choices.values()):
            return Plain("", 499)
        order = sorted(choices, reverse=self.fault == "choices-reversed")
        made = shape.head(False) | {"choices": [shape.whole(index, choices[index], plan.call) for index in order]}
        if self.fault == "created-missing":
            del made["created"]
        made["usage"] = self._usage(
            plan, sum(part.drawn is not None for parts in choices.values() for part in parts), streamed=False
        )
        return Plain(made)

    def _usage(self, plan: Plan, count: int, streamed: bool) -> dict[str, int]:
        if self.fault == "usage-off-by-one" or (self.fault == "stream-usage-off" and streamed):
            count += 1
        return {"prompt_tokens": len(plan.prompt), "completion_tokens": count, "total_tokens": len(plan.prompt) + count}

    async def _events(self, plan: Plan, shape: Shape, asked: Asked) -> AsyncGenerator[bytes]:
        """The event stream: one event per part, usage where it is asked for, [DONE]."""
        seen: set[int] = set()
        called: set[int] = set()
        options = plan.params.get("stream_options", {})
        usage = bool(options.get("include_usage"))
        count = 0
        async for index, part in self._stream_parts(plan, asked):
            count += part.drawn is not None
            call = plan.call if part.channel == "arguments" and index not in called else None
            called |= {index} if call else set()
            choice = shape.delta(index, part, index not in seen, call)
            chunk: dict[str, Any] = {**shape.head(True), "choices": [choice]}
            if usage:
                chunk["usage"] = None
            if self.fault == "ids-change":
                chunk["id"] += f"-{count}"
            seen.add(index)
            for line in self._lines(chunk, part):
                yield line
            if self.fault == "hangs-up" and count == 5:
                raise ConnectionError
        if usage:
            choices = [shape.delta(0, Part("", None), False, None)] if self.fault == "usage-with-choice" else []
            yield event(shape.head(True) | {"choices": choices, "usage": self._usage(plan, count, streamed=True)})
        if self.fault != "done-missing":
            yield b"data: [DONE]\n\n"

    async def _stream_parts(self, plan: Plan, asked: Asked) -> AsyncIterator[tuple[int, Part]]:
        if self.fault == "stream-in-one":
            last: dict[int, list[Part]] = {}
            async for index, part in self._parts(plan, asked):
                last.setdefault(index, []).append(part)
            for index, parts in last.items():
                for channel in dict.fromkeys(part.channel for part in parts):
                    text = "".join(part.text for part in parts if part.channel == channel)
                    yield index, Part(text, None, channel)
                yield index, Part("", None, finish=parts[-1].finish)
            return
        refused = self.num_refused
        while self.fault == "stream-endless":
            yield 0, Part("more ", None)
            await asyncio.sleep(0)
        async for index, part in self._parts(plan, asked):
            if self.fault == "neighbours-harmed" and self.num_refused > refused:
                part = Part(part.text.upper(), part.drawn, part.channel, part.finish, part.stop_reason)
            if self.fault == "last-text-lost" and part.finish == "length":
                part = Part("", part.drawn, part.channel, part.finish)
            if self.fault == "text-stripped":
                part = Part(part.text.lstrip(), part.drawn, part.channel, part.finish, part.stop_reason)
            yield index, part

    def _lines(self, chunk: dict[str, Any], part: Part) -> list[bytes]:
        made = [event(chunk)]
        if self.fault == "surrogate-halves" and any(ord(character) > 0xFFFF for character in part.text):
            text = json.dumps(chunk)
            return [b"data: " + text.encode().replace(b"\\ude00", b"").replace(b"\\udf89", b"") + b"\n\n"]
        if self.fault == "ends-twice" and part.finish:
            empty: dict[str, Any] = {"text": ""} if "text" in chunk["choices"][0] else {"delta": {}}
            again = {"index": chunk["choices"][0]["index"], "finish_reason": part.finish} | empty
            made.append(event(chunk | {"choices": [again]}))
        if self.fault == "finish-missing" and part.finish:
            chunk["choices"][0]["finish_reason"] = None
            made = [event(chunk)]
        if self.fault == "bare-lines":
            made = [line.removeprefix(b"data: ") for line in made] + made
        if self.fault == "keep-alive":
            made.insert(0, b": still here\n\n")
        return made


async def refused_late(error: BadRequest) -> AsyncGenerator[bytes]:
    """A refusal as an event, after a 200."""
    yield event({"error": {"message": str(error), "param": error.param}})


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode(errors="surrogatepass") + b"\n\n"
