"""Models that sleep: the memory is given back after a while without requests, and the next request loads the model."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from api.processes import ENDLESS, Process, gone

if sys.platform != "linux":
    pytest.skip("looks for processes in /proc", allow_module_level=True)

SEEDED = {"prompt": [97, 98], "max_tokens": 24, "seed": 7, "temperature": 1.5, "return_token_ids": True}
SHORT = {"prompt": [97], "max_tokens": 4, "temperature": 0}
NEVER = 3600


def wait_until(condition: Callable[[], object], timeout_s: float = 300) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.02)


def status(server: Process) -> str:
    return server.http.get("/health").json()["status"]


def wait_for(server: Process, wanted: str) -> None:
    wait_until(lambda: status(server) == wanted)


def engines(server: Process) -> list[int]:
    return [pid for pid in server.children() if b"engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def complete(server: Process, **fields) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=SHORT | fields, timeout=300)


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Callable[[], list[str]]:
    """The folders of engines' sockets that exist."""
    place = tmp_path / "sockets"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return lambda: [path.name for path in place.iterdir() if path.name.startswith("tailrace-")]


@pytest.fixture
def sleeper(tmp_path, free_port):
    """A function that runs a server whose model sleeps after so many seconds."""
    from api.processes import launched

    def launch(after: float, model: str = "scripted:count:2", scheduler: dict | None = None, **server):
        settings = {"sleep_after": after} | (scheduler or {})
        return launched(tmp_path, free_port(), model, scheduler=settings, **server)

    return launch


def test_a_model_sleeps_and_the_next_request_wakes_it(sleeper, folders):
    with sleeper(1.0, "scripted:spread", keep_alive_s=0.3) as server:
        server.until(200)
        first = complete(server, **SEEDED).json()["choices"][0]["token_ids"]
        kept = server.http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2}).json()["id"]
        wait_for(server, "sleeping")
        assert (server.health(), engines(server)) == (200, [])
        wait_until(lambda: not folders())
        card = server.http.get("/v1/models").json()["data"][0]
        assert (card["status"], card["max_model_len"]) == ({"value": "sleeping"}, 4096)
        assert server.metrics()["tailrace_engine_sleeping"] == 1
        assert server.http.get("/is_sleeping").json() == {"is_sleeping": True}
        # what needs no engine wakes none
        assert server.http.post("/tokenize", json={"prompt": "abc"}).json()["count"] == 3
        assert server.http.get(f"/v1/responses/{kept}").status_code == 200
        assert complete(server, temperature=-1).status_code == 400
        assert status(server) == "sleeping"

        with ThreadPoolExecutor(4) as pool:
            again = [pool.submit(complete, server, **SEEDED) for _ in range(3)]
            wait_for(server, "loading")
            with httpx.stream(
                "POST", f"{server.url}/v1/completions", json=SHORT | {"stream": True}, timeout=300
            ) as said:
                lines = [line for line in said.iter_lines() if line]
        assert lines[0].startswith(": loading the model")
        assert "%" in lines[0]
        assert lines[-1] == "data: [DONE]"
        assert [answer.result().json()["choices"][0]["token_ids"] for answer in again] == [first] * 3
        assert status(server) == "ready"
        assert server.metrics()["tailrace_engine_sleeping"] == 0


def test_a_client_that_leaves_is_forgotten_and_a_shutdown_leaves_nothing(sleeper, folders):
    with sleeper(NEVER, sleep_endpoints=True) as server:
        server.until(200)
        assert server.http.post("/sleep").status_code == 200
        assert (engines(server), folders()) == ([], [])
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=SHORT, timeout=0.2)
        wait_for(server, "ready")
        wait_until(lambda: server.metrics()["tailrace_num_requests_open"] == 0)
        metrics = server.metrics()
        assert (metrics["tailrace_prompt_tokens_total"], metrics["tailrace_num_aborts_unacknowledged"]) == (0, 0)
        server.http.post("/sleep")
        server.send(signal.SIGTERM)
        assert server.process.wait(300) == 0
    assert folders() == []


@pytest.mark.parametrize("drain_timeout_s", [0.1, NEVER])
def test_a_shutdown_while_a_model_loads(sleeper, folders, drain_timeout_s: float):
    """The request that waits is served if there is time for it, and otherwise fails."""
    with sleeper(NEVER, sleep_endpoints=True, drain_timeout_s=drain_timeout_s) as server, ThreadPoolExecutor(1) as pool:
        server.until(200)
        server.http.post("/sleep")
        asked = pool.submit(complete, server)
        wait_until(lambda: engines(server))
        [engine] = engines(server)
        server.send(signal.SIGTERM)
        answer = asked.result()
        assert answer.status_code == (503 if drain_timeout_s < 1 else 200)
        assert server.process.wait(300) == 0
        assert gone(engine)
    assert folders() == []


def test_a_load_that_fails_is_a_503_and_the_next_request_tries_again(sleeper, folders):
    with sleeper(NEVER, sleep_endpoints=True) as server, ThreadPoolExecutor(2) as pool:
        server.until(200)
        server.http.post("/sleep")
        asked = [pool.submit(complete, server) for _ in range(2)]
        wait_until(lambda: engines(server) and server.metrics()["tailrace_num_requests_open"] == 2)
        os.kill(engines(server)[0], signal.SIGKILL)
        for answer in asked:
            error = answer.result().json()["error"]
            assert (answer.result().status_code, error["code"]) == (503, "not_ready")
            assert error["message"] == (
                "the model could not be loaded: the engine process died (signal 9); the next request tries again"
            )
        wait_for(server, "sleeping")
        assert "signal 9" in server.http.get("/health").json()["error"]
        assert folders() == []
        assert complete(server).json()["choices"][0]["text"] == "bcde"
        assert server.http.get("/health").json() == {"status": "ready", "error": None}


def test_waiting_requests_are_bounded(sleeper):
    with sleeper(NEVER, scheduler={"max_waiting": 2}, sleep_endpoints=True) as server, ThreadPoolExecutor(2) as pool:
        server.until(200)
        server.http.post("/sleep")
        asked = [pool.submit(complete, server) for _ in range(2)]
        wait_until(lambda: server.metrics()["tailrace_num_requests_open"] == 2)
        refused = complete(server)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert [answer.result().status_code for answer in asked] == [200, 200]


def test_who_may_put_a_model_to_sleep(sleeper):
    with sleeper(0, drain_timeout_s=1.0, sleep_endpoints=True) as server:
        server.until(200)
        assert "status" in server.http.get("/v1/models").json()["data"][0]
        for path, name in (
            ("/sleep?level=3", "level"),
            ("/sleep?mode=keep", "mode"),
            ("/sleep?tags=weights", "tags"),
            ("/wake_up?tags=weights", "tags"),
        ):
            answer = server.http.post(path)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert server.http.post("/sleep?model=other").status_code == 404
        reader = server.stream()
        assert server.http.post("/sleep?mode=wait").status_code == 503  # it still runs after drain_timeout_s
        assert server.http.post("/sleep?level=2&mode=abort").status_code == 200
        assert reader.last()["error"]["code"] == "not_ready"
        assert server.http.post("/wake_up").status_code == 200
        assert server.http.get("/is_sleeping").json() == {"is_sleeping": False}
        assert complete(server).status_code == 200


def test_without_the_flags_nothing_sleeps(launch):
    with launch(api_keys="k") as server:
        server.until(200)
        assert server.http.post("/sleep").status_code == 401
        server.http.headers["authorization"] = "Bearer k"
        refused = server.http.post("/sleep")
        assert (refused.status_code, "--sleep-endpoints" in refused.json()["error"]["message"]) == (400, True)
        assert server.http.post("/wake_up").status_code == 400
        assert "status" not in server.http.get("/v1/models").json()["data"][0]


@pytest.mark.long
def test_each_of_several_models_sleeps_alone(tmp_path, free_port):
    from api.processes import launched

    models = {"a": "scripted:count:2", "b": "scripted:count:3"}
    with launched(tmp_path, free_port(), models=models, sleep_endpoints=True) as server:
        server.until(200)
        assert server.http.post("/sleep?model=a").status_code == 200
        assert server.http.get("/is_sleeping").json() == {"is_sleeping": False, "models": {"a": True, "b": False}}
        assert complete(server, model="b").status_code == 200
        assert server.http.get("/health").json()["models"] == {"a": "sleeping", "b": "ready"}
        assert server.metrics()['tailrace_engine_sleeping{model_name="a"}'] == 1
        assert complete(server, model="a").status_code == 200
        assert server.http.get("/health").json()["models"] == {"a": "ready", "b": "ready"}


@pytest.mark.long
def test_any_front_end_wakes_the_model(sleeper, folders):
    """Each request is on a connection of its own, so front ends that do not own the engine are asked too."""
    with sleeper(NEVER, sleep_endpoints=True, front_ends=3) as server:
        server.until(200)
        wait_until(lambda: server.metrics()["tailrace_front_ends"] == 3)
        for _ in range(4):
            assert httpx.post(f"{server.url}/sleep", timeout=300).status_code == 200
            assert (engines(server), folders()) == ([], [])
            with ThreadPoolExecutor(12) as pool:
                asked = [pool.submit(complete, server, max_tokens=100) for _ in range(12)]
            assert {answer.result().json()["usage"]["completion_tokens"] for answer in asked} == {100}

        # one that starts while the model sleeps
        httpx.post(f"{server.url}/sleep", timeout=300)
        others = [pid for pid in server.children() if pid not in engines(server)]
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len([pid for pid in server.children() if pid not in others]) == 2)
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(complete, server) for _ in range(12)]
        assert {answer.result().status_code for answer in asked} == {200}
        wait_until(lambda: server.metrics()["tailrace_front_ends"] == 3)

        # a load that fails: all that wait are told
        httpx.post(f"{server.url}/sleep", timeout=300)
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(complete, server) for _ in range(12)]
            wait_until(lambda: engines(server))
            wait_until(lambda: server.metrics()["tailrace_num_requests_open"] > 0)
            os.kill(engines(server)[0], signal.SIGKILL)
        assert {answer.result().status_code for answer in asked} <= {200, 503}
        assert complete(server).status_code == 200


@pytest.mark.long
def test_requests_that_race_with_sleep_are_all_answered(sleeper):
    with sleeper(0.05) as server:
        server.until(200)
        for i in range(6):
            time.sleep(0.045 + 0.004 * i)
            assert complete(server).json()["choices"][0]["text"] == "bcde"
        answer = server.http.post("/v1/completions", json=ENDLESS | {"stream": False, "max_tokens": 200})
        assert answer.json()["usage"]["completion_tokens"] == 200
