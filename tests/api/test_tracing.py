"""Spans of requests, and whether there are any."""

from __future__ import annotations

import asyncio
import http.server
import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from api.harness import NAME, LocalClient, endless, front_of, saying
from api.test_access_log import SECRET, alone, traced
from tailrace.api import access_log, trace_exporters
from tailrace.api.trace_exporters import start_tracing, wanted_exporters
from tailrace.api.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_attributes_of_a_span(front):
    spans = traced(front)
    answer = await front.chat(
        max_tokens=4,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        seed=11,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
        stop=["never"],
        n=2,
        stream=True,
        content=SECRET,
    )
    assert answer.status_code == 200
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind, span.status.status_code) == (f"chat {NAME}", SpanKind.SERVER, StatusCode.UNSET)
    assert span.parent is None
    assert span.resource.attributes["service.name"] == "tailrace"
    found = dict(span.attributes)
    first = found.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first == found.pop("tailrace.time_to_first_token") <= (span.end_time - span.start_time) / 1e9
    assert found.pop("gen_ai.response.id").startswith("chatcmpl-")
    assert found.pop("gen_ai.usage.input_tokens") > 4
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tailrace",
        "gen_ai.request.model": NAME,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7.0,
        "gen_ai.request.seed": 11,
        "gen_ai.request.frequency_penalty": 0.25,
        "gen_ai.request.presence_penalty": -0.5,
        "gen_ai.request.stop_sequences": ("never",),
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": NAME,
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "server.address": "127.0.0.1",
        "server.port": 8000,
    }


async def test_neutral_values_are_left_out(front):
    spans = traced(front)
    await front.complete(top_k=-1)
    (span,) = spans.get_finished_spans()
    assert span.name == f"text_completion {NAME}"
    left_out = {"top_k", "seed", "frequency_penalty", "presence_penalty", "stop_sequences", "choice.count", "stream"}
    assert not {f"gen_ai.request.{name}" for name in left_out} & span.attributes.keys()


@pytest.mark.parametrize(
    ("header", "trace", "sampled"),
    [(f"00-{TRACE}-{PARENT}-01", TRACE, True), (f"00-{TRACE}-{PARENT}-00", TRACE, False), ("rubbish", None, True)],
)
async def test_parent(front, header, trace, sampled):
    spans = traced(front)
    await front.http.post(
        "/v1/completions", json={"prompt": "x="}, headers={"traceparent": header, "tracestate": "a=b"}
    )
    assert bool(spans.get_finished_spans()) == sampled
    for span in spans.get_finished_spans():
        if trace is None:
            assert span.parent is None
        else:
            assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
            assert span.context.trace_state["a"] == "b"


async def test_status_of_errors_and_aborts(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.01), tokenizer) as front:
        spans = traced(front)
        await front.complete(deadline_s=0.03, max_tokens=200)
        task = asyncio.create_task(front.complete(max_tokens=200))
        await front.until(lambda: bool(front.client.engine.requests))
        front.client.die()
        await task
        cut, failed = spans.get_finished_spans()
    assert (cut.status.status_code, cut.attributes["tailrace.abort.cause"]) == (StatusCode.UNSET, "deadline")
    assert "error.type" not in cut.attributes
    assert (failed.status.status_code, failed.attributes["error.type"]) == (StatusCode.ERROR, "engine_dead")


# ---- whether there are any


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "x"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "True"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_http", "console"]),
    ],
)
def test_what_the_environment_asks_for(env, wanted):
    assert wanted_exporters(env) == wanted


def test_packages_that_are_missing_are_said_once(monkeypatch, caplog):
    monkeypatch.setattr(trace_exporters, "entry_points", lambda group: ())
    assert start_tracing({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "'.[otel]'" in record.getMessage()


def test_an_impossible_configuration_is_said(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    assert start_tracing({"OTEL_TRACES_EXPORTER": "console"}) is None
    assert "there will be no traces" in caplog.text


async def test_spans_go_out_over_http_and_are_flushed_at_the_end(tokenizer, monkeypatch):
    got: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "my-server")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
            await front.complete()
            assert front.service.observer.tracing is not None
        collector.shutdown()
    (path, body), *_ = got
    assert path == "/v1/traces"
    assert f"text_completion {NAME}".encode() in body
    assert b"my-server" in body


async def test_an_exporter_that_hangs_does_not_keep_the_process(front, monkeypatch, caplog):
    hang = threading.Event()

    class Hanging(SpanProcessor):
        def shutdown(self) -> None:
            hang.wait()

    monkeypatch.setattr(access_log, "FLUSH_S", 0.05)
    front.service.observer.tracing = Tracing([Hanging()])
    async with asyncio.timeout(300):
        await front.service.observer.close()
    assert "are lost" in caplog.text
    hang.set()


@pytest.mark.long
def test_without_configuration_opentelemetry_is_not_imported():
    program = (
        "import os, sys, tailrace.api.app; from tailrace.api.trace_exporters import start_tracing; start_tracing(os.environ);"  # noqa: E501, one text
        "sys.exit(any(name.split('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    assert alone(program).returncode == 0
    assert alone(program, {"OTEL_TRACES_EXPORTER": "console"}).returncode == 1
