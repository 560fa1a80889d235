"""Several front ends on one engine and one port: whoever is asked answers for all, and nobody outlives the first."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.harness import make_tokenizer
from api.processes import ENDLESS, Process, gone
from tailrace.api import workers
from tailrace.api.disconnect import cancel_all
from tailrace.api.metrics import Exposition, Metrics
from tailrace.api.workers import ServedModel, WorkerStart
from tailrace.base.reporting_child import make_reporting_command
from tailrace.config import EngineConfig, ModelConfig, ServerConfig
from tailrace.wire.messages import Stats

if sys.platform != "linux":
    pytest.skip("looks for processes in /proc", allow_module_level=True)

FRONT_ENDS = 3
TRIES = 12  # of one question, each on a connection of its own: whoever takes it must know the answer


def metric(text: str, name: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )


def ready(server: Process, count: int = FRONT_ENDS, timeout_s: float = 300) -> tuple[int, list[int]]:
    """The engine and the further front ends, once so many answer."""
    until = time.monotonic() + timeout_s
    server.until(200)
    while metric(server.http.get("/metrics").text, "tailrace_front_ends") != count:
        assert time.monotonic() < until
        time.sleep(0.05)
    children = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in server.children()}
    [engine] = [pid for pid, line in children.items() if "engine.process" in line]
    others = [pid for pid, line in children.items() if "api.worker" in line]
    assert len(others) == count - 1
    return engine, others


def sockets(pid: int) -> int:
    return sum(os.readlink(link).startswith("socket:") for link in Path(f"/proc/{pid}/fd").iterdir())


def alone(server: Process, method: str, path: str, **options) -> httpx.Response:
    """One request on a connection of its own."""
    with httpx.Client(base_url=server.url, timeout=300) as http:
        return http.request(method, path, **options)


def everyone(server: Process, method: str, path: str, **options) -> set[int]:
    """The statuses that many requests get."""
    return {alone(server, method, path, **options).status_code for _ in range(TRIES)}


@pytest.mark.long
def test_all_of_them_serve_and_each_answers_for_all(launch):
    with launch(front_ends=FRONT_ENDS) as server:
        _, others = ready(server)
        before = {pid: sockets(pid) for pid in (server.process.pid, *others)}
        names: list[str] = []
        readers = []
        end = time.monotonic() + 300
        # who accepts a connection is the system's choice
        while len(names) < 24 or any(sockets(pid) <= count for pid, count in before.items()):
            assert time.monotonic() < end, "one of them takes nothing"
            names.append(f"r{len(names)}")
            readers.append(server.stream(request_id=names[-1]))
        # each is cancelled by whoever is asked
        for name in names:
            assert alone(server, "DELETE", f"/v1/requests/{name}").json()["id"] == f"cmpl-{name}"
        assert all(reader.last()["choices"][0]["stop_reason"] == "cancelled" for reader in readers)
        assert alone(server, "DELETE", f"/v1/requests/{names[0]}").status_code == 404
        counted = alone(server, "GET", "/metrics").text
        assert metric(counted, "tailrace_request_finished_total") == len(names)
        assert metric(counted, "tailrace_time_to_first_token_seconds_count") == len(names)
        assert counted.count("# TYPE tailrace_request_finished_total counter") == 1

        # a response is found, continued, and forgotten wherever it is kept
        ask = {"input": "hi", "max_output_tokens": 3}
        first = alone(server, "POST", "/v1/responses", json=ask).json()
        assert everyone(server, "GET", f"/v1/responses/{first['id']}") == {200}
        assert everyone(server, "POST", "/v1/responses", json=ask | {"previous_response_id": first["id"]}) == {200}
        assert alone(server, "DELETE", f"/v1/responses/{first['id']}").json()["deleted"] is True
        assert everyone(server, "GET", f"/v1/responses/{first['id']}") == {404}
        assert everyone(server, "POST", "/v1/responses", json=ask | {"previous_response_id": first["id"]}) == {404}


@pytest.mark.long
def test_one_that_dies_is_replaced_and_its_requests_end(launch):
    with launch(front_ends=2) as server:
        _, [other] = ready(server, 2)
        readers = [server.stream(request_id=f"r{i}") for i in range(8)]
        os.kill(other, signal.SIGKILL)
        _, [successor] = ready(server, 2)
        assert successor != other
        left = [reader for reader in readers if reader.is_alive()]
        until = time.monotonic() + 300
        while metric(server.http.get("/metrics").text, "tailrace_num_requests_running") != len(left):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert server.http.post("/v1/completions", json=ENDLESS | {"stream": False, "max_tokens": 3}).status_code == 200


@pytest.mark.long
def test_a_drain_lets_all_of_them_finish(launch, capfd):
    with launch(front_ends=FRONT_ENDS, drain_timeout_s=300) as server:
        engine, others = ready(server)
        body = ENDLESS | {"stream": False, "max_tokens": 300}
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(alone, server, "POST", "/v1/completions", json=body) for _ in range(12)]
            until = time.monotonic() + 300
            while metric(server.http.get("/metrics").text, "tailrace_prompt_tokens_total") < 12:
                assert time.monotonic() < until
                time.sleep(0.02)
            server.send(signal.SIGTERM)
            bodies = [answer.result().json() for answer in asked]
            assert [body.get("usage", body)["completion_tokens"] for body in bodies] == [300] * 12, bodies
        assert server.process.wait(300) == 0
        assert all(gone(pid) for pid in (engine, *others))
    assert "Fatal" not in capfd.readouterr().err  # they end as a process should


@pytest.mark.long
def test_a_second_signal_does_not_wait_for_the_others(launch):
    with launch(front_ends=2, drain_timeout_s=3600) as server:
        engine, others = ready(server, 2)
        readers = [server.stream() for _ in range(8)]
        server.send(signal.SIGINT)
        server.leaves(200)
        assert server.process.poll() is None
        server.send(signal.SIGINT)
        assert server.process.wait(300) == 0
        assert all(gone(pid) for pid in (engine, *others))
        for reader in readers:
            reader.join(300)
            assert not reader.whole()


async def test_nobody_is_replaced_while_all_are_to_end(monkeypatch, leaps):
    monkeypatch.setattr(workers, "REPLACE_AFTER_S", 0.3)
    monkeypatch.setattr(workers, "POLL_S", 0.02)

    class Sleepers(workers.Workers):
        spawned = 0

        def _spawn_worker(self, place: int) -> subprocess.Popen[bytes]:
            self.spawned += 1
            return subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    group = Sleepers(2, workers.WorkerStart(ServerConfig(), [], named=False, socket=0))
    group.on_launched("m", "ipc://nowhere")
    watch = asyncio.create_task(group.watch())
    group._processes[0].kill()
    group._processes[0].wait()
    await asyncio.sleep(0.15)  # it is found dead, and about to be replaced
    group.drain()
    await asyncio.sleep(0.4)
    assert group.spawned == 2
    await cancel_all(watch)
    group.stop(5, lambda: False)
    assert all(process.poll() is not None for process in group._processes)


def test_nobody_outlives_the_first(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with launch(front_ends=FRONT_ENDS) as server:
        engine, others = ready(server)
        server.send(signal.SIGKILL)
        server.process.wait(300)
        assert all(gone(pid) for pid in (engine, *others))
    assert not list(tmp_path.glob("tailrace-*"))  # nor does the socket's folder


@pytest.mark.long
def test_the_engines_death_reaches_every_stream(launch, capfd):
    with launch(front_ends=FRONT_ENDS, on_engine_death="restart") as server:
        engine, _ = ready(server)
        readers = [server.stream() for _ in range(12)]
        os.kill(engine, signal.SIGKILL)
        assert {reader.last()["error"]["code"] for reader in readers} == {"engine_dead"}
        successor, _ = ready(server)
        assert successor != engine
        assert everyone(server, "POST", "/v1/completions", json=ENDLESS | {"stream": False, "max_tokens": 2}) == {200}
    assert capfd.readouterr().err.count("the engine is lost") == 1  # its owner alone reports it


def test_counts_are_added_up():
    models = [Metrics(Stats, lambda: True, lambda wasted=wasted: wasted) for wasted in (3, 4)]
    fronts = [Exposition({"": model}) for model in models]
    models[0].finished.labels("stop").inc(2)
    models[1].finished.labels("stop").inc(5)
    models[1].finished.labels("length").inc()
    for i, model in enumerate(models):
        model.queue_time.observe(0.002 + i)
    text = fronts[0].render_metrics([front.own() for front in fronts]).decode()
    for line in (
        'tailrace_request_finished_total{finish_reason="stop"} 7.0',
        'tailrace_request_finished_total{finish_reason="length"} 1.0',
        "tailrace_wasted_tokens_total 7.0",
        'tailrace_request_queue_time_seconds_bucket{le="0.005"} 1.0',
        'tailrace_request_queue_time_seconds_bucket{le="+Inf"} 2.0',
        "tailrace_request_queue_time_seconds_count 2.0",
        "tailrace_front_ends 2.0",
        "tailrace_engine_ready 1.0",
    ):
        assert f"\n{line}\n" in f"\n{text}", line


@pytest.mark.long
def test_users_are_separate_whichever_of_them_is_asked(launch):
    with launch(front_ends=2, api_keys="one, two") as server:
        ready(server, 2)
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        ask = {"input": "hi", "max_output_tokens": 3}
        path = f"/v1/responses/{alone(server, 'POST', '/v1/responses', json=ask, headers=one).json()['id']}"
        assert everyone(server, "GET", path, headers=one) == {200}
        for method, of in (("GET", path), ("GET", f"{path}/input_items"), ("POST", f"{path}/cancel"), ("DELETE", path)):
            assert everyone(server, method, of, headers=two) == {404}
        assert everyone(server, "GET", path, headers=one) == {200}


@pytest.mark.long
def test_limits_per_user_hold_for_the_server(launch):
    """Connections spread over the front ends, and together get what one user has, whatever time it takes."""
    with launch(front_ends=FRONT_ENDS, requests_per_minute=12, metrics_by_user=1) as server:
        ready(server)
        begun_s = time.monotonic()
        answers = [alone(server, "POST", "/v1/completions", json=ENDLESS | {"max_tokens": 1}) for _ in range(40)]
        most = 12 + 12 * (time.monotonic() - begun_s) / 60
        statuses = [answer.status_code for answer in answers]
        assert statuses[:12] == [200] * 12
        assert 12 <= statuses.count(200) <= most
        assert set(statuses) == ({200, 429} if most < 40 else {200})
        text = server.http.get("/metrics").text
        assert metric(text, "tailrace_user_requests_total") == statuses.count(200)
        assert metric(text, "tailrace_user_requests_refused_total") == statuses.count(429)


@pytest.mark.long
def test_a_front_end_that_dies_leaves_no_running_requests(launch):
    with launch(front_ends=FRONT_ENDS, max_requests_per_user=4) as server:
        _, others = ready(server)
        body = ENDLESS | {"ignore_eos": True}
        readers = [server.stream() for _ in range(4)]
        assert everyone(server, "POST", "/v1/completions", json=body) == {429}
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        assert all(gone(pid) for pid in others)
        ready(server)
        running = sum(reader.is_alive() for reader in readers)
        for _ in range(4 - running):
            server.stream()
        assert everyone(server, "POST", "/v1/completions", json=body) == {429}


@pytest.mark.long
def test_a_stream_is_resumed_wherever_it_runs(launch):
    """Each of them gives the events behind any event, while the request runs and afterwards."""
    with launch(front_ends=FRONT_ENDS, api_keys="one, two") as server:
        ready(server)
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = ENDLESS | {"resumable": True, "request_id": "a", "max_tokens": 300}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=one, timeout=300) as answer:
            got = next(answer.iter_raw()).rsplit(b"\n\n", 1)[0] + b"\n\n"
        path, count = "/v1/completions/cmpl-a", got.count(b"\n\n")
        assert everyone(server, "GET", path, headers=two) == {404}
        with ThreadPoolExecutor(TRIES) as pool:
            headers = one | {"last-event-id": str(count)}
            rests = [pool.submit(alone, server, "GET", path, headers=headers) for _ in range(TRIES)]
            [rest] = {rest.result().content for rest in rests}
        assert b'"finish_reason":"length"' in rest
        assert rest.startswith(b"id: %d\n" % (count + 1))
        assert {alone(server, "GET", path, headers=one).content for _ in range(TRIES)} == {got + rest}
        assert everyone(server, "GET", path, headers=two) == {404}


@pytest.mark.long
def test_thoughts_and_answers_are_ended_by_whoever_is_asked(launch):
    with launch(front_ends=FRONT_ENDS) as server:
        ready(server)
        chat = {"messages": [{"role": "user", "content": "a"}], "allowed_token_ids": [97], "stream": True}
        for number in range(TRIES):
            body = chat | {"request_id": f"r{number}"}
            with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=300) as answer:
                pieces = answer.iter_raw()
                text = next(pieces)
                path = f"/v1/chat/completions/chatcmpl-r{number}/control"
                thought = alone(server, "POST", path, json={"action": "reasoning_end"})
                assert (thought.status_code, thought.json()["success"]) == (200, False)
                ended = alone(server, "POST", path, json={"action": "answer_end"})
                assert ended.json() == {"id": f"chatcmpl-r{number}", "success": True}
                text += b"".join(pieces)
            assert b'"stop_reason":"cancelled"' in text
            assert alone(server, "POST", path, json={"action": "answer_end"}).status_code == 404


def test_a_front_end_that_is_ended_before_it_serves_logs_no_traceback(tmp_path):
    """So it is if the engine can't start: the further front ends wait for it then."""
    make_tokenizer(tmp_path)
    model = ServedModel(EngineConfig(model=ModelConfig(model="scripted:next", name="m")), str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as shared:
        start = WorkerStart(ServerConfig(front_ends=2), [model], named=False, socket=shared.fileno())
        process = subprocess.Popen(
            make_reporting_command("tailrace.api.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[shared.fileno()],
        )
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        process.stdin.flush()
        while b"Waiting for application startup" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.5)  # its lifespan waits for the engine
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(300) == 0
        assert b"Traceback" not in log
        process.stdin.close()
        process.stderr.close()
