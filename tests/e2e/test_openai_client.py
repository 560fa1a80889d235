"""The official openai client against the real server with the default model: the judge of what "compatible" means.

Also what a person does: the curl of the README, kill -9 of the engine under load, disconnects, a clean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
NAME = "small"


class Server:
    """`tailrace serve` in a process of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "tailrace.cli", "serve", "--model", str(folder), "--port", str(self.port)]
        self.process = subprocess.Popen([*command, "--served-model-name", NAME, "--num-blocks", "2000", *flags])
        end = time.monotonic() + 300
        while self.health() != 200:
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not get ready"
            time.sleep(0.1)

    def health(self) -> int:
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metric(self, name: str) -> float:
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=300).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if b"engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


@pytest.fixture(scope="module")
def server(model_folder: Path) -> Iterator[Server]:
    running = Server(model_folder)
    yield running
    assert running.stop() == 0


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as made:
        yield made


def test_chat(client):
    answer = client.chat.completions.create(model=NAME, messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat_is_the_same_text(client):
    ask = {
        "model": NAME,
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 40,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    for i, choice in enumerate(whole.choices):
        parts = [c for chunk in chunks for c in chunk.choices if c.index == i]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
        entries = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
        assert [entry.token for entry in entries] == [entry.token for entry in choice.logprobs.content]
        for entry in entries:
            assert len(entry.top_logprobs) == 3
            assert entry.logprob <= 0
            assert entry.top_logprobs[0].token == entry.token  # greedy: the drawn one is the likeliest
        spelled = b"".join(bytes(entry.bytes) for entry in entries)
        assert spelled.decode().startswith(choice.message.content)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.long
def test_responses(client):
    ask = {"model": NAME, "input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": 40}
    whole = client.responses.create(**ask)
    assert "Paris" in whole.output_text
    assert (whole.status, whole.error) == ("completed", None)
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(**ask) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == said == whole.output_text
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    more = client.responses.create(**ask | {"input": "And of Italy?"}, previous_response_id=whole.id)
    assert more.usage.input_tokens > whole.usage.total_tokens
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)


def test_echo_and_logprobs_of_a_prompt(client):
    """What lm-eval's loglikelihood asks for."""
    choice = client.completions.create(
        model=NAME, prompt="The capital of France is Paris", echo=True, logprobs=1, max_tokens=1, temperature=0
    ).choices[0]
    tokens, logprobs = choice.logprobs.tokens, choice.logprobs.token_logprobs
    assert "".join(tokens) == choice.text
    assert logprobs[0] is None
    assert logprobs[tokens.index(" Paris")] > -2.0
    assert all(logprob <= 0 for logprob in logprobs[1:])


@pytest.mark.long
def test_seeds_stops_and_lengths(client):
    ask = {"model": NAME, "messages": QUESTION, "temperature": 1.0, "top_p": 0.9, "max_tokens": 24, "n": 3}
    first = [c.message.content for c in client.chat.completions.create(**ask, seed=7).choices]
    again = [c.message.content for c in client.chat.completions.create(**ask, seed=7).choices]
    assert first == again
    assert len(set(first)) > 1
    stopped = client.chat.completions.create(
        model=NAME, messages=QUESTION, temperature=0, stop=[" of", "zzz"], max_tokens=40
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content.endswith("capital")
    short = client.chat.completions.create(model=NAME, messages=QUESTION, temperature=0, max_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)


@pytest.mark.long
def test_completions(client):
    ask = {
        "model": NAME,
        "prompt": ["Once upon a time", "1, 2, 3, 4,"],
        "temperature": 0,
        "max_tokens": 12,
        "logprobs": 2,
    }
    whole = client.completions.create(**ask)
    assert [c.index for c in whole.choices] == [0, 1]
    assert "5" in whole.choices[1].text
    for choice in whole.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert choice.logprobs.text_offset[0] == 0
        assert len(choice.logprobs.token_logprobs) == 12
    chunks = list(client.completions.create(**ask, stream=True))
    for i in (0, 1):
        assert "".join(c.text for chunk in chunks for c in chunk.choices if c.index == i) == whole.choices[i].text
    echoed = client.completions.create(model=NAME, prompt="Once upon a time", echo=True, temperature=0, max_tokens=4)
    assert echoed.choices[0].text.startswith("Once upon a time")


@pytest.mark.long
def test_extra_parameters_reach_the_sampler(client):
    ids = client.completions.create(
        model=NAME,
        prompt="Hello",
        max_tokens=6,
        temperature=0,
        extra_body={"allowed_token_ids": [260, 253], "min_tokens": 6, "return_token_ids": True},
    )
    assert set(ids.choices[0].token_ids) <= {260, 253}
    words = {"model": NAME, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    assert " Paris" in client.completions.create(**words).choices[0].text
    assert " Paris" not in client.completions.create(**words, extra_body={"bad_words": ["Paris"]}).choices[0].text
    biased = client.completions.create(**words, logit_bias={"253": 100}).choices[0]
    assert biased.logprobs is None
    assert biased.text != client.completions.create(**words).choices[0].text


def test_errors_are_the_clients_own_kinds(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-17", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    for field, value in (
        ("temperature", -1),
        ("top_p", 3),
        ("n", 0),
        ("max_tokens", 10**6),
        ("logit_bias", {"99999999": 1}),
    ):
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=NAME, messages=QUESTION, **{field: value})
        assert bad.value.param == field
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=NAME, prompt=[1] * 9000)
    assert long.value.code == "context_length_exceeded"


def test_models(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME


@pytest.mark.long
async def test_the_async_client_streams_many_at_once(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def ask(i: int) -> str:
            stream = await client.chat.completions.create(
                model=NAME, messages=QUESTION, temperature=0, max_tokens=16, stream=True, seed=i
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        texts = await asyncio.gather(*(ask(i) for i in range(8)))
    assert len(set(texts)) == 1
    assert "Paris" in texts[0]


def test_the_curl_of_the_readme(server):
    body = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": true, "max_tokens": 12}'
    out = subprocess.run(
        ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    frames = out.strip().split("\n\n")
    assert frames[-1] == "data: [DONE]"
    for frame in frames[:-1]:
        json.loads(frame.removeprefix("data: "))


async def test_disconnects_leave_nothing(server):
    async with httpx.AsyncClient(base_url=server.url) as client:

        async def leave(i: int) -> None:
            body = {
                "prompt": f"{i} " * (1 + i % 50),
                "max_tokens": 300,
                "stream": i % 2 == 0,
                "n": 1 + i % 2,
                "ignore_eos": True,
            }
            with contextlib.suppress(TimeoutError, httpx.HTTPError):
                await asyncio.wait_for(client.post("/v1/completions", json=body, timeout=None), 0.02 * (i % 11))

        await asyncio.gather(*(leave(i) for i in range(60)))
    end = time.monotonic() + 300
    gauges = ("tailrace_num_requests_running", "tailrace_num_requests_waiting", "tailrace_kv_cache_usage_perc")
    while any(server.metric(name) for name in gauges):
        assert time.monotonic() < end, "something is left"
        await asyncio.sleep(0.2)


@pytest.mark.long
async def test_kill_9_of_the_engine_ends_every_stream_with_an_error(model_folder):
    server = Server(model_folder)
    engine = server.engine_pid()
    ends: list[str] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

        async def read(i: int) -> None:
            body = {"prompt": f"Count: {i}", "max_tokens": 2000, "stream": True, "ignore_eos": True}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                lines = [line async for line in response.aiter_lines() if line]
            ends.append(lines[-1])

        readers = [asyncio.create_task(read(i)) for i in range(12)]
        await asyncio.sleep(2)
        os.kill(engine, signal.SIGKILL)
        await asyncio.gather(*readers)
    assert len(ends) == 12
    assert all(json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead" for last in ends)
    assert server.process.wait(300) == 1
    assert not Path(f"/proc/{engine}").exists()


@pytest.mark.long
async def test_a_server_told_to_restart_its_engine_does(model_folder):
    server = Server(model_folder, "--on-engine-death", "restart")
    os.kill(server.engine_pid(), signal.SIGKILL)
    end = time.monotonic() + 300
    while server.health() != 503:
        assert time.monotonic() < end, "health does not notice"
        await asyncio.sleep(0.01)
    end = time.monotonic() + 300
    while server.health() != 200:
        assert time.monotonic() < end, "the engine does not come back"
        await asyncio.sleep(0.1)
    body = json.dumps({"prompt": "Hello", "max_tokens": 3}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"content-type": "application/json"})
    answer = urllib.request.urlopen(request, timeout=300)
    assert json.load(answer)["usage"]["completion_tokens"] == 3
    assert server.stop() == 0
