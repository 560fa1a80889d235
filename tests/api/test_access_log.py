"""What is told of a request: exactly one line in every ending, none where nothing was accepted; and the log's
formats."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from api.harness import EOS, NAME, Front, LocalClient, endless, front_of, saying, served
from api.test_disconnect import Leaving, bodies, leave, wait_until_idle
from e2e.test_speculation import TEXT, GuessingClient
from tailrace.api import access_log
from tailrace.api.app import create_app
from tailrace.api.tracing import Tracing
from tailrace.base.logs import start_logging
from tailrace.config import ServerConfig
from tailrace.errors import ConfigError
from tailrace.text.output import TextStream
from tailrace.wire.messages import Submit

SECRET = "a prompt with a secret"


class Lines:
    """What the access log says in JSON."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def one(self) -> dict[str, Any]:
        (line,) = self.all()
        return line


@pytest.fixture
def lines(monkeypatch) -> Iterator[Lines]:
    given: dict[str, Any] = {}
    with monkeypatch.context() as patched:  # the handler as the server makes it, without the tests' own root logger
        patched.setattr(logging, "basicConfig", lambda **options: given.update(options))
        start_logging("info", "json")
    logging.captureWarnings(False)
    (handler,) = given["handlers"]
    stream = io.StringIO()
    handler.setStream(stream)
    access_log.access.setLevel(logging.INFO)
    access_log.access.addHandler(handler)
    yield Lines(stream)
    access_log.access.removeHandler(handler)
    access_log.access.setLevel(logging.NOTSET)


def traced(front: Front) -> InMemorySpanExporter:
    """Spans of this front end from now on."""
    exporter = InMemorySpanExporter()
    front.service.observer.tracing = Tracing([SimpleSpanProcessor(exporter)])
    return exporter


def alone(program: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter of its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", program], env=plain | (env or {}), capture_output=True, text=True, timeout=300
    )


async def ask_and_leave(front: Front, body: dict[str, Any], gone: asyncio.Event) -> None:
    """A completion whose client leaves at `gone`."""
    raw = json.dumps(body).encode()
    messages = iter([{"type": "http.request", "body": raw, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "server": ("test", 80),
        "client": ("test", 1),
        "state": {},
    }
    await front.app(scope, receive, send)


# ---- one line per request that was accepted, however it ends

MESSAGES = [{"role": "user", "content": SECRET}]
FINISHED = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}, ["stop"]),
    "chat, streamed": ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, ["stop"]),
    "response": ("/v1/responses", {"input": SECRET}, ["stop"]),
    "response, streamed": ("/v1/responses", {"input": SECRET, "stream": True}, ["stop"]),
    "completion": ("/v1/completions", {"prompt": "x="}, ["stop"]),
    "n > 1": ("/v1/completions", {"prompt": "x=", "n": 3}, ["stop"] * 3),
    "several prompts": ("/v1/completions", {"prompt": ["x=", "yy="], "max_tokens": 2, "stream": True}, ["length"] * 2),
    "best_of": ("/v1/completions", {"prompt": "x=", "best_of": 2, "temperature": 1}, ["stop"] * 2),
    "beams of a chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "use_beam_search": True, "stream": True},
        ["stop"],
    ),
    "beam": ("/v1/completions", {"prompt": "x=", "use_beam_search": True, "n": 2, "max_tokens": 3}, ["length"] * 2),
}


@pytest.mark.parametrize("which", FINISHED)
async def test_finished(front, lines, which):
    path, body, reasons = FINISHED[which]
    spans = traced(front)
    answer = await front.http.post(path, json={"temperature": 0, **body}, headers={"x-request-id": "mine"})
    assert answer.status_code == 200, answer.text
    line = lines.one()
    assert line["request_id"] == "mine"
    assert (line["endpoint"], line["model"], line["streamed"]) == (path, NAME, body.get("stream", False))
    assert line["operation"] == ("text_completion" if path == "/v1/completions" else "chat")
    assert line["finish_reasons"] == reasons
    assert (line["error"], line["cause"]) == (None, None)
    assert 0 < line["first_token_s"] <= line["total_s"]
    assert (line["level"], line["logger"]) == ("INFO", "tailrace.access")
    assert line["time"].endswith("+00:00")
    if not body.get("stream"):
        usage = answer.json()["usage"]
        told = [
            usage.get(name) or usage[other]
            for name, other in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
        ]
        assert [line["prompt_tokens"], line["completion_tokens"]] == told
    assert SECRET not in lines.text
    assert "Hello" not in lines.text
    assert len(spans.get_finished_spans()) == 1


async def test_cached_tokens_are_told(front, lines):
    for _ in range(2):
        await front.complete("y" * 40 + "=")
    assert [line["cached_tokens"] for line in lines.all()] == [0, 32]


@pytest.mark.parametrize("stream", [False, True])
async def test_failed_row(tokenizer, lines, stream):
    def nan_after_two(ids: list[int]) -> Any:
        return [float("nan")] * 258 if len(ids) > ids.index(ord("=")) + 2 else ord("a")

    async with front_of(LocalClient(nan_after_two), tokenizer) as front:
        await front.complete(stream=stream)
        line = lines.one()
        assert (line["error"], line["cause"], line["finish_reasons"]) == ("invalid_logits", None, [])
        assert line["completion_tokens"] == 2


async def test_what_was_guessed_is_told(tokenizer, lines):
    client = GuessingClient(saying(TEXT))
    client.guess = [*TEXT, EOS]
    async with front_of(client, tokenizer) as front:
        answer = (await front.complete(max_tokens=30)).json()
    line, details = lines.one(), answer["usage"]["completion_tokens_details"]
    stood, not_stood = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert (line["drafted_tokens"], line["accepted_tokens"]) == (stood + not_stood, stood)
    assert 0 < stood < 30


@pytest.mark.parametrize("beam", [False, True])
async def test_the_engine_dies(tokenizer, lines, beam):
    async with front_of(LocalClient(endless, tick_s=0.01), tokenizer) as front:
        task = asyncio.create_task(front.complete(use_beam_search=beam, max_tokens=200))
        await front.until(lambda: front.client.engine.counters.generated_tokens > 2)
        front.client.die()
        await task
        assert (lines.one()["error"], lines.one()["cause"]) == ("engine_dead", None)


async def test_a_bug_of_ours(front, lines, monkeypatch):
    def broken(*_: Any) -> Any:
        raise ValueError(SECRET)

    monkeypatch.setattr(TextStream, "feed", broken)
    spans = traced(front)
    assert (await front.complete()).status_code == 500
    assert (lines.one()["error"], lines.one()["cause"]) == ("internal_error", None)
    assert SECRET not in lines.text + str([span.to_json() for span in spans.get_finished_spans()])


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize(
    "kind", [{}, {"stream": True}, {"use_beam_search": True}, {"use_beam_search": True, "stream": True}, {"n": 3}]
)
async def test_disconnect(tokenizer, lines, kind, hold):
    """`hold`: no token has come when the client leaves."""
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        front.client.hold = hold
        gone = asyncio.Event()
        body = {"prompt": "x=", "max_tokens": 200, **kind}
        task = asyncio.create_task(ask_and_leave(front, body, gone))
        engine = front.client.engine
        # A beam's requests live for one step each: whoever looks between the steps need not see any.
        await front.until(lambda: bool(engine.requests) if hold else engine.counters.generated_tokens > 4)
        gone.set()
        await task
        line = lines.one()
        assert (line["cause"], line["error"], line["finish_reasons"]) == ("disconnect", None, [])
        assert (line["first_token_s"] is None) == hold
        front.client.hold = False
        await front.until(front.client.idle)


@pytest.mark.parametrize("stream", [False, True])
async def test_deadline(tokenizer, lines, stream):
    async with front_of(LocalClient(endless, tick_s=0.01), tokenizer) as front:
        await front.complete(["x=", "y="], deadline_s=0.05, stream=stream, max_tokens=200)
        line = lines.one()
        assert (line["cause"], line["error"], line["finish_reasons"]) == ("deadline", None, ["abort"] * 2)
        assert line["completion_tokens"] > 0


@pytest.mark.parametrize("beam", [False, True])
async def test_cancelled(tokenizer, lines, beam):
    async with front_of(LocalClient(endless, tick_s=0.01), tokenizer) as front:
        task = asyncio.create_task(front.complete(request_id="r1", use_beam_search=beam, max_tokens=200))
        await front.until(lambda: front.client.engine.counters.generated_tokens > 2)
        await front.http.delete("/v1/requests/r1")
        await task
        line = lines.one()
        assert (line["cause"], line["error"], line["finish_reasons"]) == ("cancelled", None, ["abort"])


async def test_shutdown(tokenizer, lines):
    async with front_of(LocalClient(endless, tick_s=0.01), tokenizer) as front:
        task = asyncio.create_task(front.complete(max_tokens=200))
        await front.until(lambda: front.client.engine.counters.generated_tokens > 2)
        await front.service.drain(0.01)
        await task
        assert (lines.one()["cause"], lines.one()["error"]) == ("shutdown", "not_ready")


async def test_refused_by_the_engine_was_accepted_here(tokenizer, lines):
    """The front end can't know that the waiting line is full. The engine takes its time, so that nobody has ended when
    the last has come."""
    async with front_of(LocalClient(endless, tick_s=0.1), tokenizer) as front:
        assert (await front.complete(["x="] * 200, max_tokens=200)).status_code == 429
        assert lines.one()["error"] == "overloaded"


async def test_what_is_refused_before_the_engine_has_no_line(front, lines):
    spans = traced(front)
    assert (await front.complete(temperature=-1)).status_code == 400
    assert (await front.complete("x" * 500)).status_code == 400
    assert (await front.complete(model="other")).status_code == 404
    assert (await front.complete(use_beam_search=True, seed=1)).status_code == 400
    assert (await front.http.get("/v1/models")).status_code == 200
    front.service.supervisor.drain()
    assert (await front.complete()).status_code == 503
    assert not lines.all()
    assert not spans.get_finished_spans()


async def test_no_log_requests(tokenizer, lines):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, ServerConfig(log_requests=False)) as front:
        spans = traced(front)
        assert (await front.complete()).status_code == 200
        assert not lines.all()
        assert len(spans.get_finished_spans()) == 1


def test_a_storm_of_disconnects_leaves_one_line_each(tokenizer, free_port, lines):
    """Over real sockets, at any point of a request's life."""
    port, client, submitted = free_port(), LocalClient(endless, tick_s=0.02), set()
    send = client.send

    def counted(message: Any) -> None:
        if isinstance(message, Submit):
            submitted.add(message.id.split("-")[1])
        send(message)

    client.send = counted  # type: ignore[method-assign]
    app = create_app(client, tokenizer, ServerConfig(port=port), NAME)
    rng = random.Random(7)

    async def storm() -> None:
        ways = [(bodies(rng), Leaving(rng.uniform(0, 0.3), asks=rng.choice([1, 1, rng.random()]))) for _ in range(60)]
        await asyncio.gather(*(leave(port, path, body, how) for (path, body), how in ways))

    with served(app, port):
        asyncio.run(storm())
        wait_until_idle(client, app.state.front.default.open_requests)
        told = [line["request_id"] for line in lines.all()]
        assert told  # how many get so far depends on the speed of the machine
        assert len(told) == len(set(told))
        assert submitted >= set(told)
        assert len(told) == len(submitted)


# ---- the log as a whole


def test_json_lines_of_a_process():
    program = """
import logging, warnings
from tailrace.base.logs import start_logging
start_logging("info", "json")
log = logging.getLogger("tailrace.some")
log.info("two\\nlines of %s", "text", extra={"request_id": "r"})
log.debug("unheard")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed \\ud800")
warnings.warn("old")
"""
    plain, failed, warned = map(json.loads, alone(program).stderr.splitlines())
    assert list(plain) == ["time", "level", "logger", "message", "request_id"]
    assert (plain["level"], plain["logger"], plain["request_id"]) == ("INFO", "tailrace.some", "r")
    assert plain["message"] == "two\nlines of text"
    assert "ZeroDivisionError" in failed["exception"]
    assert warned["logger"] == "py.warnings"


def test_text_is_as_it_was_and_other_formats_are_refused():
    program = (
        'import logging; from tailrace.base.logs import start_logging; start_logging("{}", "text"); logging.info("x")'
    )
    assert alone(program.format("info")).stderr == "INFO root: x\n"
    assert alone(program.format("warning")).stderr == ""
    with pytest.raises(ConfigError, match="text, json"):
        start_logging("info", "yaml")


def parsed(words: list[str]) -> Callable[[str], Any]:
    """The arguments of `tailrace serve`, by name."""
    from tailrace.cli import make_parser

    args = make_parser("serve").parse_args(["serve", *words])
    return lambda name: getattr(args, name)


def test_flags(monkeypatch):
    monkeypatch.delenv("TAILRACE_LOG_FORMAT", raising=False)
    assert parsed([])("log_format") == "text"
    assert parsed(["--log-format", "json"])("log_format") == "json"
    assert parsed(["--no-log-requests"])("server.log_requests") is False
    monkeypatch.setenv("TAILRACE_LOG_FORMAT", "json")
    assert parsed([])("log_format") == "json"
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        parsed(["--log-format", "yaml"])


@pytest.mark.long
def test_the_engine_process_logs_the_same_way():
    """It reads its settings from stdin, which ends at once: what it says of a broken start is JSON too."""
    program = (
        "import os, sys; from tailrace.base import reporting_child; import logging;"
        "r, w = os.pipe(); os.close(w); os.dup2(r, 0); sys.argv[1:] = ['tailrace.engine.process'];"
        "reporting_child.main(); logging.getLogger('tailrace.engine').info('x')"
    )
    done = alone(program, {"TAILRACE_LOG_FORMAT": "json", "TAILRACE_LOG": "info"})
    assert json.loads(done.stderr)["logger"] == "tailrace.engine", done.stderr
