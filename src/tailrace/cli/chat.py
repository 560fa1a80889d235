"""tailrace chat: a conversation in the terminal, streamed; with an engine of its own, or with a server by --url.

/reset forgets the conversation, /quit (or end of input) ends it, Ctrl-C stops the answer and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from tailrace.api.problems import from_failed
from tailrace.cli.local import prepare
from tailrace.cli.options import add_config, add_sampling, read_config, read_sampling
from tailrace.errors import EngineDeadError, EngineError, TailraceError
from tailrace.params import SamplingParams
from tailrace.text.stream import TextStream
from tailrace.wire.messages import Failed, Tokens
from tailrace.wire.sync import SyncClient

Messages = list[dict[str, Any]]
Answer = Callable[[Messages], Iterator[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tailrace chat`."""
    parser.add_argument("--url", help="a running server, like http://localhost:8000; left out: an engine of its own")
    parser.add_argument("--system", help="the system message")
    add_sampling(parser)
    add_config(parser, "model", "cache", "scheduler")


def run(arguments: argparse.Namespace) -> int:
    """Until the input ends."""
    if arguments.url:
        converse(remote(arguments.url, read_sampling(arguments, {})), arguments.system)
        return 0
    local = prepare(read_config(arguments))
    params = read_sampling(arguments, local.defaults)
    client = SyncClient(local.engine)
    eos = client.start().eos_token_ids

    def answer(messages: Messages) -> Iterator[str]:
        text = TextStream(local.tokenizer, params, eos)
        with client.submit(local.tokenizer.encode_chat(messages), params) as stream:
            for events in stream:
                for event in events:
                    if isinstance(event, Failed):
                        raise from_failed(event)
                    delta = (
                        text.feed(event.token_ids)
                        if isinstance(event, Tokens)
                        else text.flush(event.reason, event.stop_token_id)
                    )
                    yield delta.text
                    if delta.finish_reason is not None:
                        return

    try:
        converse(answer, arguments.system)
    finally:
        client.close()
    return 0


def remote(url: str, params: SamplingParams) -> Answer:
    """Answers of a server's /v1/chat/completions."""
    asked = {name: getattr(params, name) for name in params.__struct_fields__}
    neutral = SamplingParams()
    body = {name: value for name, value in asked.items() if value != getattr(neutral, name)}

    def answer(messages: Messages) -> Iterator[str]:
        request = {"messages": messages, "stream": True, **body}
        try:
            with httpx.stream("POST", f"{url.rstrip('/')}/v1/chat/completions", json=request, timeout=None) as response:
                if response.status_code != 200:
                    raise EngineError(json.loads(response.read())["error"]["message"])
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        yield content(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            raise EngineDeadError(f"{url}: {error}") from error

    return answer


def content(chunk: dict[str, Any]) -> str:
    """A chunk's text.

    Raises:
        EngineError: the chunk is an error.
    """
    if "error" in chunk:
        raise EngineError(chunk["error"]["message"])
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def converse(answer: Answer, system: str | None) -> None:
    """Read, answer, remember."""
    opening: Messages = [{"role": "system", "content": system}] if system else []
    messages = list(opening)
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line == "/quit":
            return
        if line == "/reset":
            messages = list(opening)
        elif line:
            said = speak(answer, [*messages, {"role": "user", "content": line}])
            if said is not None:
                messages += [{"role": "user", "content": line}, {"role": "assistant", "content": said}]


def speak(answer: Answer, messages: Messages) -> str | None:
    """Print an answer as it comes; what was said, None if it failed."""
    said = ""
    parts = answer(messages)
    try:
        for part in parts:
            print(part, end="", flush=True)
            said += part
    except KeyboardInterrupt:
        close = getattr(parts, "close", None)
        if close is not None:
            close()
    except TailraceError as error:
        print(f"[{error}]", file=sys.stderr)
        return None
    print(flush=True)
    return said
