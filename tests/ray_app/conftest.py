"""An application on this machine, as `serve run` starts it: two replicas with scripted engines, one ingress."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
import ray

PORT = 8765
URL = f"http://127.0.0.1:{PORT}"
NAME = "tailrace"
REPLICA = f"SERVE_REPLICA::{NAME}#Replica#"
ARGS = {
    "model.model": "scripted:next:20",  # 20 ms per token
    "model.name": "scripted",
    "server.drain_timeout_s": "300",
    "ray.min_replicas": "2",
    "ray.max_replicas": "2",
    "ray.num_cpus": "0.2",
    "ray.route_blocks": "4",
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray with the application."""
    from ray import serve

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    deploy()
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
def application(cluster: None) -> None:
    """Two replicas: Ray has replaced what the test before has killed."""
    wait_for(lambda: len(replicas()) == 2)


def deploy(**changes: str) -> None:
    """`serve run` with these settings; returns once it serves."""
    settings = [f"{name}={value}" for name, value in {**ARGS, **changes}.items()]
    address = ray.get_runtime_context().gcs_address
    command = [Path(sys.executable).with_name("serve"), "run", "--non-blocking", "--address", address, "--name", NAME]
    done = subprocess.run(
        [*command, "tailrace.integrations.ray:app", *settings], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wait_for(lambda: get("/health").status_code == 200)


def states() -> dict[str, int]:
    """Ray's states of the replicas → how many are in it."""
    from ray import serve

    return dict(serve.status().applications[NAME].deployments["Replica"].replica_states)


def replicas() -> list[str]:
    """Names of the replicas; none while some come or go."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    living = [name.removeprefix(REPLICA) for name in names if name.startswith(REPLICA)]
    return living if states() == {"RUNNING": len(living)} else []


def kill(name: str) -> None:
    """End a replica as a machine that is gone does."""
    ray.kill(ray.get_actor(REPLICA + name, namespace="serve"))


def engines() -> list[psutil.Process]:
    """The engines' processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "tailrace.engine.process" in process.cmdline():
                found.append(process)
        except psutil.Error:  # it has ended
            continue
    return found


@contextmanager
def held() -> Iterator[None]:
    """All engines stand still: no stream goes on or ends, however long something else takes."""
    stopped = engines()
    for engine in stopped:
        engine.suspend()
    try:
        yield
    finally:
        for engine in stopped:
            with suppress(psutil.Error):  # killed meanwhile
                engine.resume()


def wait_for(condition: Callable[[], object], seconds: float = 150) -> None:
    """Until it is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.3)


def get(path: str) -> httpx.Response:
    return httpx.get(URL + path, timeout=60)


def complete(prompt: str, max_tokens: int = 3, **fields: object) -> httpx.Response:
    body = {"model": "scripted", "prompt": prompt, "max_tokens": max_tokens, **fields}
    return httpx.post(f"{URL}/v1/completions", json=body, timeout=120)


def served(prompt: str) -> httpx.Response:
    """The answer, as clients get it that try a 503 again."""
    answers: list[httpx.Response] = []

    def answered() -> bool:
        answers.append(complete(prompt))
        assert answers[-1].status_code == 200 or (answers[-1].status_code, "retry-after" in answers[-1].headers) == (
            503,
            True,
        )
        return answers[-1].status_code == 200

    wait_for(answered)
    return answers[-1]


def text(number: int) -> str:
    """A prompt of more than four blocks, which begins like no other."""
    return f"{number} " + f"the {number} of a story that goes on " * 20
