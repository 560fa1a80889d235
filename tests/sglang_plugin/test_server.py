"""Whole SGLang servers on a CPU, `python -m sglang.launch_server --sampling-backend tailrace`, over HTTP. Their model
is tiny; without SGLang's kernels for a CPU, its own PyTorch code computes it (stand_ins/)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tailrace.integrations.sglang.refused_fields import SGLANG

FLAGS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "tailrace",
    "--max-total-tokens": "2048",
    "--max-running-requests": "8",
    "--dtype": "float32",
}
KINDS: dict[str, list[str]] = {
    "plain": [],
    "deterministic": ["--enable-deterministic-inference"],
    "drafts": [
        "--speculative-algorithm=NGRAM",
        "--speculative-num-draft-tokens=4",
        "--speculative-ngram-max-bfs-breadth=1",
    ],
}
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
START_S = 400


@pytest.fixture(scope="module", params=KINDS)
def server(request, model, python_path, tmp_path_factory) -> Iterator[tuple[str, str]]:
    """A server's kind and address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, log = f"http://127.0.0.1:{port}", Path(tmp_path_factory.mktemp("log")) / "server.log"
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", "--model-path", model, "--port", str(port)]
    flags = ["--disable-cuda-graph", "--skip-server-warmup", *(part for flag in FLAGS.items() for part in flag)]
    environment = {**os.environ, "PYTHONPATH": python_path, "SGLANG_USE_CPU_ENGINE": "1"}
    with log.open("w") as out:
        process = subprocess.Popen([*command, *flags, *KINDS[request.param]], env=environment, stdout=out, stderr=out)
        try:
            wait_until_ready(address, process, log)
            yield request.param, address
            assert "after an error in tailrace" not in log.read_text()
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(address: str, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if requests.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(1)
    pytest.fail(f"the server did not start: {log.read_text()[-3000:]}")


def generate(address: str, fields: dict[str, Any], **more: Any) -> list[int]:
    sampling = {"max_new_tokens": 24, "ignore_eos": True, **fields}
    answer = requests.post(
        f"{address}/generate", json={"input_ids": PROMPT, "sampling_params": sampling, **more}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["output_ids"]


SAID: dict[str, dict[str, list[int]]] = {}
SEEDED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"sampling_seed": 7},
    {"sampling_seed": 7, "top_k": 3, "min_p": 0.1},
    {"sampling_seed": 8, "temperature": 0.4, "top_p": 0.8},
    {"sampling_seed": 8, "top_k": 6, "custom_params": {"xtc_probability": 0.5, "xtc_threshold": 0.0001}},
    {"sampling_seed": 9, "custom_params": {"allowed_token_ids": [1, 2, 3, 4]}},
]


@pytest.mark.parametrize("fields", SEEDED, ids=str)
def test_seeded_tokens_are_the_same_alone_in_a_crowd_and_on_each_server(server, fields):
    kind, address = server
    alone = generate(address, fields)
    with ThreadPoolExecutor(6) as crowd:
        again = [
            crowd.submit(generate, address, fields if place % 2 else {"sampling_seed": place}) for place in range(6)
        ]
        assert [one.result() for one in again][1::2] == [alone] * 3
    SAID.setdefault(kind, {})[str(fields)] = alone
    assert all(said.get(str(fields), alone) == alone for said in SAID.values())
    if fields.get("custom_params", {}).get("allowed_token_ids"):
        assert set(alone) <= {1, 2, 3, 4}
        assert len(set(alone)) > 1


def test_requests_without_a_seed_differ_unless_sglang_gives_them_one(server):
    kind, address = server
    assert (len({tuple(generate(address, {})) for _ in range(3)}) == 1) == (kind == "deterministic")


def test_fields_with_history_act_or_are_refused(server):
    """In overlapping steps too: SGLang's default, but not with drafts on a CPU."""
    kind, address = server
    fields = {"temperature": 0.0, "custom_params": {"no_repeat_ngram_size": 1}}
    if kind == "drafts":
        assert refuse(f"{address}/generate", {"input_ids": PROMPT, "sampling_params": fields}).startswith(
            "no_repeat_ngram_size can't be had inside SGLang"
        )
        return
    said = generate(address, fields)
    assert len({*said, *PROMPT}) == len(said) + len(set(PROMPT))
    assert len(set(generate(address, {"temperature": 0.0}))) < 24
    banned = sorted(set(generate(address, {"temperature": 0.0})))
    words = {"temperature": 0.0, "custom_params": {"bad_words": [[id] for id in banned]}}
    assert not {*generate(address, words)} & {*banned}


def refuse(url: str, body: dict[str, Any]) -> str:
    answer = requests.post(url, json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    found = answer.json()
    return found.get("error", found)["message"]


def test_refused_fields_are_a_400_at_each_endpoint(server):
    _, address = server
    chat = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    text = {"model": "default", "prompt": "Hi", "max_tokens": 3}
    for custom, message in (
        ({"banned_strings": ["a"]}, f"banned_strings can't be had inside SGLang: {SGLANG['banned_strings']}"),
        ({"xtc_probabilty": 0.5}, "did you mean xtc_probability?"),
        ({"xtc_probability": 3}, "xtc_probability must be a number in [0, 1], got 3"),
    ):
        given = {"custom_params": custom}
        assert message in refuse(f"{address}/generate", {"input_ids": PROMPT, "sampling_params": given})
        assert message in refuse(f"{address}/v1/chat/completions", {**chat, **given})
        assert message in refuse(f"{address}/v1/completions", {**text, **given})
        assert message in refuse(f"{address}/v1/chat/completions", {**chat, **given, "stream": True})
    outside = "xtc_probability can't be had in SGLang's fields: set xtc_probability in custom_params"
    assert outside in refuse(f"{address}/v1/chat/completions", {**chat, "xtc_probability": 0.5})
    assert outside in refuse(f"{address}/v1/completions", {**text, "xtc_probability": 0.5})
    body = {"input_ids": PROMPT, "sampling_params": {"xtc_probability": 0.5}}
    answer = requests.post(f"{address}/generate", json=body, timeout=60)  # SGLang's own form for its parameters
    assert answer.status_code == 400
    assert "xtc_probability" in answer.text
    assert "banned_strings can't be had inside SGLang" in refuse(
        f"{address}/v1/completions", {**text, "banned_strings": ["a"]}
    )
    for body, path in ((chat, "chat/completions"), (text, "completions")):
        answer = requests.post(
            f"{address}/v1/{path}", json={**body, "seed": 4, "custom_params": {"xtc_probability": 0.5}}, timeout=60
        )
        assert answer.status_code == 200, answer.text
