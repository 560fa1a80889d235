"""`tailrace serve --lora-folder`: adapters that come and go, with two front ends, each asked on new connections."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from e2e.test_two_models import COUNT, PROMPT, alone, random_model
from runners.test_lora import adapter

pytestmark = pytest.mark.long  # api/test_adapters and engine/test_adapters: each side alone


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """The server's address, and what the model and its adapter say."""
    base = tmp_path_factory.mktemp("served")
    model = random_model(base / "m", 1, 256)
    (base / "adapters").mkdir()
    merged = adapter(base / "adapters" / "x", model, ("self_attn.q_proj", "mlp.up_proj"), 4, 3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = {
        "--port": str(port),
        "--front-ends": "2",
        "--threads": "1",
        "--dtype": "float32",
        "--model": str(base / "m"),
        "--lora-folder": str(base / "adapters"),
    }
    words = [word for pair in flags.items() for word in pair]
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--served-model-name", "m", "mm", *words]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while not ready(url):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield url, {"m": alone(model), "x": alone(merged)}
    finally:
        process.terminate()
        process.wait(300)


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def say(url: str, model: str) -> tuple[int, list[int]]:
    body = {"prompt": PROMPT, "model": model, "temperature": 0, "max_tokens": COUNT, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body | {"return_token_ids": True}, timeout=300)
    return answer.status_code, answer.json()["choices"][0]["token_ids"] if answer.status_code == 200 else []


def test_every_front_end_knows(served):
    url, said = served
    assert [say(url, name) for name in ("m", "mm")] == [(200, said["m"])] * 2
    for _ in range(3):
        assert {say(url, "x")[0] for _ in range(6)} == {404}
        loaded = httpx.post(f"{url}/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "x"}, timeout=300)
        assert loaded.status_code == 200, loaded.text
        assert {say(url, "x")[0] for _ in range(6)} == {200}
        assert say(url, "x") == (200, said["x"])
        assert say(url, "m") == (200, said["m"])
        cards = httpx.get(f"{url}/v1/models").json()["data"]
        assert [(card["id"], card.get("parent")) for card in cards] == [("m", None), ("mm", None), ("x", "m")]
        gone = httpx.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": "x"}, timeout=300)
        assert gone.status_code == 200, gone.text
