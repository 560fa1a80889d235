"""Several models behind one set of front ends: the `model` field chooses, and what befalls one is no other's
business."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

from api.harness import EOS, TEMPLATE, LocalClient, byte_names, endless, events, saying
from api.processes import ENDLESS, Process, gone
from tailrace.api.app import app_of
from tailrace.api.front_end import FrontEnd
from tailrace.base.logs import FORMAT_VARIABLE, MODEL_VARIABLE
from tailrace.config import ServerConfig
from tailrace.errors import ModelLoadError
from tailrace.text.tokenizer import Tokenizer

CHAT = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}


@pytest.fixture(scope="module")
def backwards(tmp_path_factory) -> Tokenizer:
    """Every byte is a token, but the ids count down: 255 is byte 0. Its template says so."""
    folder = tmp_path_factory.mktemp("backwards")
    vocab = {name: 255 - i for i, name in enumerate(byte_names())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": "back " + TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(folder)


def flipped(script: Callable[[list[int]], Any]) -> Callable[[list[int]], Any]:
    """The same script for the other vocabulary."""

    def flip(ids: list[int]) -> Any:
        said = script([255 - id if id < 256 else id for id in ids])
        if isinstance(said, int):
            return 255 - said
        said[:256] = said[:256].flip(0)
        return said

    return flip


class Two:
    """A front end with the models "a" and "team/b", over HTTP without a network."""

    def __init__(self, front: FrontEnd, a: LocalClient, b: LocalClient, http: httpx.AsyncClient) -> None:
        self.front, self.a, self.b, self.http = front, a, b, http

    async def ask(self, model: str | None, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
        """POST, with a prompt where there is none."""
        body = fields if "messages" in fields or "input" in fields else {"prompt": "x=", "temperature": 0} | fields
        return await self.http.post(path, json=body if model is None else body | {"model": model})

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it."""
        async with asyncio.timeout(300):
            while not condition():
                await asyncio.sleep(0.002)

    def states(self) -> list[str]:
        """Of the engines."""
        return [service.supervisor.state for service in self.front.services.values()]


@contextlib.asynccontextmanager
async def two(
    a: LocalClient, b: LocalClient, tokenizer: Tokenizer, backwards: Tokenizer, **config: Any
) -> AsyncIterator[Two]:
    front = FrontEnd(ServerConfig(**config), named=True)
    front.add(a, tokenizer, "a")
    front.add(b, backwards, "team/b", {"temperature": 0.5})
    app = app_of(front)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        made = Two(front, a, b, http)
        await made.until(lambda: "starting" not in made.states())
        yield made


@pytest.fixture
async def pair(tokenizer, backwards) -> AsyncIterator[Two]:
    async with two(
        LocalClient(saying(b"I am a")), LocalClient(flipped(saying(b"and I b"))), tokenizer, backwards
    ) as made:
        yield made


SAID = {"a": "I am a", "team/b": "and I b", None: "I am a"}


@pytest.mark.parametrize("model", SAID)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_field_chooses(pair, model, stream):
    """Another engine, another vocabulary: a token of the wrong one would be another letter."""
    shown = model or "a"
    chat = await pair.ask(model, "/v1/chat/completions", **CHAT, stream=stream)
    text = await pair.ask(model, stream=stream)
    response = await pair.ask(model, "/v1/responses", input="hi", temperature=0, stream=stream)
    if stream:
        chats, texts = events(chat.text)[:-1], events(text.text)[:-1]
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in chats) == SAID[model]
        assert "".join(event["choices"][0]["text"] for event in texts) == SAID[model]
        assert {event["model"] for event in chats + texts} == {shown}
        assert f'"text":"{SAID[model]}"' in response.text
        return
    assert chat.json()["choices"][0]["message"]["content"] == text.json()["choices"][0]["text"] == SAID[model]
    assert {answer.json()["model"] for answer in (chat, text, response)} == {shown}
    assert response.json()["output"][0]["content"][0]["text"] == SAID[model]
    assert chat.json()["system_fingerprint"] == text.json()["system_fingerprint"]
    other = "team/b" if shown == "a" else "a"
    assert (await pair.ask(other)).json()["system_fingerprint"] != text.json()["system_fingerprint"]


async def test_tokens_are_the_models_own(pair):
    for model, id in (("a", ord("A")), ("team/b", 255 - ord("A"))):
        assert (await pair.ask(model, "/tokenize", prompt="A")).json()["tokens"] == [id]
        assert (await pair.http.post("/detokenize", json={"model": model, "tokens": [id]})).json()["prompt"] == "A"
    assert (await pair.http.post("/tokenize", json={"prompt": "A"})).json()["tokens"] == [ord("A")]
    lengths = [
        (await pair.ask(model, "/tokenize", **CHAT | {"temperature": None})).json()["count"]
        for model in ("a", "team/b")
    ]
    assert lengths[1] == lengths[0] + len("back ")  # its own template


async def test_sampling_defaults_are_the_models_own(pair):
    for model, temperature in (("a", 1.0), ("team/b", 0.5)):
        body = {"prompt": "x=", "model": model, "return_sampling_params": True}
        answer = (await pair.http.post("/v1/completions", json=body)).json()
        assert answer["sampling_params"].get("temperature", 1.0) == temperature


@pytest.mark.parametrize("default", [3, 10**6])
async def test_length_of_an_answer_is_the_models_own_unless_the_request_names_one(pair, default):
    """A default that the context has no room for ends with the context; a request's own limit is refused there."""
    pair.front.services["a"].defaults = {"max_tokens": default}
    said = SAID["a"][:default]
    reason = "length" if default == 3 else "stop"
    chat = (await pair.ask("a", "/v1/chat/completions", **CHAT)).json()["choices"][0]
    text = (await pair.ask("a")).json()["choices"][0]
    assert (
        (chat["message"]["content"], chat["finish_reason"]) == (text["text"], text["finish_reason"]) == (said, reason)
    )
    named = (await pair.ask("a", max_tokens=5)).json()["choices"][0]
    assert named["text"] == SAID["a"][:5]
    assert (await pair.ask("a", max_tokens=10**6)).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "x="}),
        ("/v1/responses", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [5]}),
    ],
)
async def test_an_unknown_model(pair, path, body):
    for name in ("b", "A", "", "a,team/b", "x" * 5000):
        answer = await pair.http.post(path, json=body | {"model": name})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert '"a", "team/b"' in error["message"]
        assert len(error["message"]) < 400
    assert not pair.a.streams.open_streams


async def test_all_are_listed(pair):
    listed = (await pair.http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["max_model_len"], card["object"]) for card in listed] == [
        ("a", 256, "model"),
        ("team/b", 256, "model"),
    ]
    for card in listed:
        assert (await pair.http.get(f"/v1/models/{card['id']}")).json() == card
    assert (await pair.http.get("/v1/models/b")).status_code == 404


async def test_a_model_has_several_names(tokenizer):
    front = FrontEnd(ServerConfig())
    front.add(LocalClient(saying(b"I am a")), tokenizer, "a", {"top_k": 5}, aliases=["gpt-4o", "team/a"])
    app = app_of(front)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    prints = set()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        await asyncio.wait_for(front.default.supervisor.settled.wait(), 300)
        for name in ("a", "gpt-4o", "team/a"):
            answer = (await http.post("/v1/chat/completions", json=CHAT | {"model": name})).json()
            assert (answer["model"], answer["choices"][0]["message"]["content"]) == (name, "I am a")
            prints.add(answer["system_fingerprint"])
            streamed = await http.post("/v1/completions", json={"prompt": "x=", "stream": True, "model": name})
            assert {chunk["model"] for chunk in events(streamed.text)[:-1]} == {name}
            response = (await http.post("/v1/responses", json={"input": "x", "model": name})).json()
            assert response["model"] == name
            message = (await http.post("/v1/messages", json=CHAT | {"max_tokens": 5, "model": name})).json()
            assert message["model"] == name
            assert (await http.get(f"/v1/models/{name}")).json()["id"] == name
        assert len(prints) == 1
        listed = (await http.get("/v1/models")).json()["data"]
        assert [card["id"] for card in listed] == ["a", "gpt-4o", "team/a"]
        assert [card["sampling_defaults"] for card in listed] == [{"top_k": 5}] * 3
        assert (await http.post("/v1/completions", json={"prompt": "x=", "model": "team"})).status_code == 404
        assert (await http.get("/metrics")).text.count("\ntailrace_engine_ready ") == 1


async def test_the_sampling_defaults_are_shown(pair):
    shown = [card["sampling_defaults"] for card in (await pair.http.get("/v1/models")).json()["data"]]
    assert shown == [dict(service.defaults) for service in pair.front.services.values()]
    assert any(shown)


async def test_metrics_tell_them_apart(pair):
    for model, times in (("a", 1), ("team/b", 3)):
        for _ in range(times):
            await pair.ask(model)
    await pair.until(lambda: pair.b.stats.generated_tokens == 3 * 8)
    text = (await pair.http.get("/metrics")).text
    for line in (
        'tailrace_request_finished_total{finish_reason="stop",model_name="a"} 1.0',
        'tailrace_request_finished_total{finish_reason="stop",model_name="team/b"} 3.0',
        'tailrace_generation_tokens_total{model_name="a"} 7.0',
        'tailrace_generation_tokens_total{model_name="team/b"} 24.0',
        'tailrace_e2e_request_latency_seconds_bucket{le="+Inf",model_name="team/b"} 3.0',
        'tailrace_engine_ready{model_name="a"} 1.0',
        "tailrace_front_ends 1.0",
    ):
        assert f"\n{line}\n" in f"\n{text}", line
    assert "\ntailrace_event_loop_lag_seconds_count " in text  # the front end's own
    families = re.findall(r"# TYPE (\S+) ", text)
    assert len(families) == len(set(families))


async def test_lines_name_the_model(pair, caplog):
    with caplog.at_level(logging.INFO, "tailrace.access"):
        await pair.ask("team/b", request_id="r1")
        pair.b.die()
        await pair.until(lambda: pair.states()[1] == "dead")
    [line] = [record for record in caplog.records if record.name == "tailrace.access"]
    assert line.getMessage().startswith("team/b: text_completion r1: stop;")
    assert line.model == "team/b"
    assert any("the engine of team/b is lost" in record.getMessage() for record in caplog.records)


async def test_one_dies_and_the_other_serves_on(tokenizer, backwards):
    a, b = LocalClient(endless, tick_s=0.002), LocalClient(flipped(endless), tick_s=0.002)
    async with two(a, b, tokenizer, backwards) as pair:
        running = [asyncio.create_task(pair.ask(model, max_tokens=100)) for model in ("a", "team/b")]
        await pair.until(lambda: all(client.engine.counters.generated_tokens > 3 for client in (a, b)))
        b.die()
        mine, theirs = await asyncio.gather(*running)
        assert (mine.status_code, len(mine.json()["choices"][0]["text"])) == (200, 100)
        assert (theirs.status_code, theirs.json()["error"]["code"]) == (503, "engine_dead")
        health = await pair.http.get("/health")
        assert health.status_code == 503
        assert (health.json()["status"], health.json()["models"]) == ("dead", {"a": "ready", "team/b": "dead"})
        assert "signal 9" in health.json()["error"]
        refused = await pair.ask("team/b")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
        assert "team/b" in refused.json()["error"]["message"]
        assert (await pair.ask("a", max_tokens=5)).status_code == 200
        assert not pair.front.over.is_set()
        a.die()
        await asyncio.wait_for(pair.front.over.wait(), 300)


async def test_one_that_dies_is_restarted_alone(tokenizer, backwards, monkeypatch):
    monkeypatch.setattr("tailrace.api.supervise.RESTART_AFTER_S", 0.05)
    a, b = LocalClient(saying(b"I am a")), LocalClient(flipped(saying(b"and I b")))
    async with two(a, b, tokenizer, backwards, on_engine_death="restart") as pair:
        b.die()
        await pair.until(lambda: pair.states() == ["ready", "starting"])
        assert (await pair.http.get("/health")).json()["models"] == {"a": "ready", "team/b": "starting"}
        await pair.until(lambda: pair.states() == ["ready", "ready"])
        assert (a.starts, b.starts) == (1, 2)
        assert (await pair.ask("team/b")).json()["choices"][0]["text"] == SAID["team/b"]


async def test_one_that_does_not_come_up_ends_all(tokenizer, backwards, caplog):
    b = LocalClient(flipped(endless))
    b.start_error = ModelLoadError("no such folder")
    async with two(LocalClient(endless), b, tokenizer, backwards) as pair:
        await asyncio.wait_for(pair.front.over.wait(), 300)
    assert "the model team/b can't be had: no such folder" in caplog.text


async def test_requests_are_found_whosever_they_are(tokenizer, backwards):
    a, b = LocalClient(endless, tick_s=0.01), LocalClient(flipped(endless), tick_s=0.01)
    async with two(a, b, tokenizer, backwards) as pair:
        running = [asyncio.create_task(pair.ask(m, request_id="mine", max_tokens=200)) for m in ("a", "team/b")]
        await pair.until(lambda: all(client.engine.counters.generated_tokens > 2 for client in (a, b)))
        assert (await pair.http.delete("/v1/requests/mine")).status_code == 200
        for answer in await asyncio.gather(*running):  # both have the label
            assert answer.json()["choices"][0]["stop_reason"] == "cancelled"
        await pair.until(lambda: a.idle() and b.idle())


async def test_a_response_goes_on_with_another_model(pair):
    first = (await pair.ask("a", "/v1/responses", input="hi", temperature=0)).json()
    body = {"input": "and you?", "previous_response_id": first["id"], "temperature": 0}
    second = (await pair.ask("team/b", "/v1/responses", **body)).json()
    assert second["output"][0]["content"][0]["text"] == SAID["team/b"]
    assert (await pair.http.get(f"/v1/responses/{first['id']}")).json()["model"] == "a"


async def test_a_drain_waits_for_both(tokenizer, backwards):
    a, b = LocalClient(endless, tick_s=0.002), LocalClient(flipped(endless), tick_s=0.002)
    async with two(a, b, tokenizer, backwards) as pair:
        running = [asyncio.create_task(pair.ask(model, max_tokens=60)) for model in ("a", "team/b")]
        await pair.until(lambda: all(client.engine.counters.generated_tokens > 3 for client in (a, b)))
        await pair.front.drain(10)
        assert [(await task).json()["usage"]["completion_tokens"] for task in running] == [60, 60]
        assert {(await pair.ask(model)).status_code for model in ("a", "team/b")} == {503}


async def test_a_slot_of_one_is_no_slot_of_the_other(tokenizer, backwards):
    """Waiting lines are per model: one whose line is full refuses, the other takes more."""
    a, b = LocalClient(endless), LocalClient(flipped(saying(b"ok")))
    async with two(a, b, tokenizer, backwards) as pair:
        assert (await pair.ask("a", prompt=["x="] * 200)).status_code == 429
        assert (await pair.ask("team/b", prompt=["x="] * 20)).status_code == 200
        assert (await pair.ask("team/b", logit_bias={str(EOS): 100})).status_code == 200


# ---- as processes

BOTH = {"one": "scripted:count:5", "two": "scripted:count:3"}


def engines(server: Process) -> list[int]:
    """In the order in which they were started."""
    return sorted(p for p in server.children() if "engine.process" in Path(f"/proc/{p}/cmdline").read_text())


def said(server: Process, model: str) -> httpx.Response:
    """A short answer, on a connection of its own."""
    with httpx.Client(base_url=server.url, timeout=300) as http:
        body = ENDLESS | {"stream": False, "max_tokens": 3, "model": model}
        return http.post("/v1/completions", json=body)


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Callable[[], set[str]]:
    """Says where engines have their sockets: in a folder that other tests have no engines in."""
    base = tmp_path / "t"
    base.mkdir()
    monkeypatch.setenv("TMPDIR", str(base))
    return lambda: {path.name for path in base.glob("tailrace-*") if (path / "engine").exists()}


@pytest.mark.long
@pytest.mark.parametrize("front_ends", [1, 2])
def test_whole_servers(launch, folders, front_ends):
    with launch(front_ends=front_ends, models=BOTH) as server:
        server.until(200)
        first, second = engines(server)
        for pid, model in ((first, "one"), (second, "two")):
            assert f"{MODEL_VARIABLE}={model}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for _ in range(8):
            for model in BOTH:
                answer = said(server, model)
                assert (answer.status_code, answer.json().get("model")) == (200, model), answer.text
            assert said(server, "three").status_code == 404
        counted = server.metrics()
        for model in BOTH:
            assert counted[f'tailrace_request_finished_total{{finish_reason="length",model_name="{model}"}}'] == 8
        os.kill(second, signal.SIGKILL)
        server.until(503)
        assert {said(server, "one").status_code for _ in range(8)} == {200}
        until = time.monotonic() + 300
        while {said(server, "two").status_code for _ in range(8)} != {503}:
            assert time.monotonic() < until
        assert server.process.poll() is None
        os.kill(first, signal.SIGKILL)
        assert server.process.wait(300) == 1
        assert not folders()


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_engines_lines_name_its_model(form):
    code = "import logging; from tailrace.base.logs import start_inherited_logging as s; s(); logging.getLogger('x').error('100% of it')"  # noqa: E501, one text
    env = {**os.environ, FORMAT_VARIABLE: form, MODEL_VARIABLE: "a%s"}
    line = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stderr
    if form == "text":
        assert line == "ERROR x (a%s): 100% of it\n"
    else:
        assert (json.loads(line)["model"], json.loads(line)["message"]) == ("a%s", "100% of it")


@pytest.mark.long
def test_a_stop_leaves_nothing(launch, folders):
    with launch(front_ends=2, models=BOTH) as server:
        server.until(200)
        both = engines(server)
        assert len(folders()) == 2
        readers = [server.stream(model=model, max_tokens=200) for model in BOTH]
        server.send(signal.SIGTERM)
        assert server.process.wait(300) == 0
        assert all(gone(pid) for pid in both)
        assert [reader.last()["choices"][0]["finish_reason"] for reader in readers] == ["length", "length"]
        assert not folders()


@pytest.mark.long
def test_one_that_fails_at_start_stops_the_server(launch, capfd):
    with launch(models={"one": "scripted:count:5", "bad": "scripted:nothing"}) as server:
        assert server.process.wait(300) == 1
    assert "the model bad can't be had" in capfd.readouterr().err
