"""Sources of a conversation's answers: a server over HTTP, or an engine started here. Both are functions from messages
to a generator of text. Closing the generator ends the answer at its source."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from tailrace.base.extras import require_extra
from tailrace.cli.flags import given_sampling, read_config, read_sampling
from tailrace.cli.local import PreparedModel, delta_of, engine, prepare
from tailrace.errors import ConfigError, EngineDeadError, EngineError, RequestError
from tailrace.models import choose_sampling_defaults
from tailrace.params import SamplingParams
from tailrace.text.output import TextStream
from tailrace.wire.sync_client import SyncClient

with require_extra("serve"):
    import httpx

Message = dict[str, str]
ChatBackend = Callable[[list[Message]], Generator[str, None, None]]

MAX_TOKENS = 1024  # of an answer, without --max-tokens
CONNECT_TIMEOUT_S = 10.0


@contextmanager
def local_backend(args: argparse.Namespace) -> Iterator[ChatBackend]:
    """Provide the answers of an engine process that lives as long as the block."""
    prepared = prepare(read_config(args))
    start = choose_sampling_defaults(prepared.folder, prepared.asked) | {"max_tokens": MAX_TOKENS}
    params = read_sampling(args, start, prepared.tokenizer)
    check_single_answer(params)
    with engine(prepared) as client:
        yield lambda messages: local_answer(messages, params, prepared, client)


def local_answer(
    messages: list[Message], params: SamplingParams, prepared: PreparedModel, client: SyncClient
) -> Generator[str, None, None]:
    """Yield the text of one answer, delta by delta.

    Raises:
        TailraceError: the engine refused the request, or died.
    """
    prompt = prepared.tokenizer.encode_chat(messages)
    text = TextStream(prepared.tokenizer, params, prompt=prompt)
    with client.submit(prompt, params) as stream:
        for events in stream:
            for event in events:
                if (delta := delta_of(text, event)) is None:
                    continue
                if delta.text:
                    yield delta.text
                if delta.finish_reason:
                    return


@contextmanager
def remote_backend(args: argparse.Namespace) -> Iterator[ChatBackend]:
    """Provide the answers of the server at args.url."""
    url = address(args.url, "/v1/chat/completions")
    params = read_sampling(args, {}, None)
    check_single_answer(params)
    given = {field: getattr(params, field) for field in given_sampling(args)}  # the server has its own defaults
    body = msgspec.to_builtins(given, str_keys=True)
    if args.__dict__.get("model.model"):
        body["model"] = args.__dict__["model.model"]
    with calling(args.api_key) as http:
        yield lambda messages: remote_answer(http, url, {**body, "messages": messages, "stream": True})


def address(url: str, path: str) -> str:
    """Return the URL of an endpoint.

    Raises:
        ConfigError: `url` is no HTTP address.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must begin with http:// or https://, got {url!r}")
    return url.rstrip("/").removesuffix("/v1") + path


def calling(api_key: str | None) -> httpx.Client:
    """Make a client that waits for an answer without a time limit."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(headers=headers, timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S))


def post(args: argparse.Namespace, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a whole answer of the server at args.url.

    Raises:
        RequestError: the server refused the request. EngineDeadError: it can't be reached, or broke off.
    """
    url = address(args.url, path)
    try:
        with calling(args.api_key) as http:
            response = http.post(url, json=body)
    except httpx.HTTPError as error:
        raise EngineDeadError(f"{url}: {error or type(error).__name__}") from error
    if response.status_code != 200:
        raise RequestError(f"the server answers {response.status_code}: {problem(response)}")
    return response.json()


def remote_answer(http: httpx.Client, url: str, body: dict[str, Any]) -> Generator[str, None, None]:
    """Yield the text of one answer, delta by delta, read from a stream of server-sent events.

    Raises:
        RequestError: the server refused the request. EngineDeadError: it can't be reached, or broke off.
    """
    try:
        with http.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                response.read()
                raise RequestError(f"the server answers {response.status_code}: {problem(response)}")
            for line in response.iter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise EngineError(event["error"].get("message", data))
                for choice in event.get("choices", ()):
                    if content := choice["delta"].get("content"):
                        yield content
    except httpx.HTTPError as error:
        raise EngineDeadError(f"{url}: {error or type(error).__name__}") from error


def problem(response: httpx.Response) -> str:
    """Return the message of an OpenAI error body, or the body."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text.strip()[:500]


def check_single_answer(params: SamplingParams) -> None:
    """Raise ConfigError if the parameters ask for several answers."""
    if params.n != 1:
        raise ConfigError(f"n must be 1 in a conversation, got {params.n}")
