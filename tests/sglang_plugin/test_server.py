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
from tiny_model import EOS

from tailrace.integrations.sglang.refused_fields import SGLANG
from tailrace.params import FIELDS
from tailrace.sampling import request_key

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
A = ord("a") - ord("!")  # its id, see tiny_model
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


def generate(address: str, fields: dict[str, Any], **more: Any) -> Any:
    """Return the output's ids; with n a list of them for each sequence."""
    sampling = {"max_new_tokens": 24, "ignore_eos": True, **fields}
    answer = requests.post(
        f"{address}/generate", json={"input_ids": PROMPT, "sampling_params": sampling, **more}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return [one["output_ids"] for one in found] if isinstance(found, list) else found["output_ids"]


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


def test_sequences_of_a_seed_differ_and_come_again(server):
    kind, address = server
    for fields in ({"sampling_seed": 7}, {"sampling_seed": 7, "custom_params": {"top_h": 0.9}}):
        several = generate(address, {**fields, "n": 3})
        assert len({*map(tuple, several)}) == 3
        assert several[0] == generate(address, fields)
        assert several == generate(address, {**fields, "n": 3})
        seeds = [request_key(7, index) for index in range(3)]
        assert several == [generate(address, {**fields, "sampling_seed": seed}) for seed in seeds]
    unseeded = [generate(address, {"n": 2}) for _ in range(2)]
    assert unseeded[0][0] != unseeded[0][1]
    assert (unseeded[0] == unseeded[1]) == (kind == "deterministic")


def test_own_fields_act_beside_a_grammar_and_neighbours_that_end(server):
    """With a grammar SGLang draws when the ended requests of the step before have already left."""
    _, address = server
    given = {"regex": "[a-c]{30}", "sampling_seed": 3, "custom_params": {"allowed_token_ids": [A, A + 1]}}
    alone = generate(address, given)
    assert {*alone} == {A, A + 1}
    assert len(alone) == 24
    short = {"sampling_seed": 3, "custom_params": {"top_h": 0.9}}
    with ThreadPoolExecutor(6) as crowd:
        found = [
            crowd.submit(generate, address, given if place % 2 else {**short, "max_new_tokens": 3 + place})
            for place in range(6)
        ]
        assert [one.result() for one in found][1::2] == [alone] * 3


def fetch(address: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"text": "ab", "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, **fields}, **more}
    answer = requests.post(f"{address}/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_fields_under_names_of_sglangs_own_act(server):
    """Those whose draws tailrace must see, and those of the answer. The others are in the other tests of servers."""
    kind, address = server
    plain = fetch(address, {"ignore_eos": True})
    said, text = plain["output_ids"], plain["text"]
    assert len(said) == 8  # max_tokens and ignore_eos
    assert fetch(address, {"logit_bias": {str(A): 99.0}})["output_ids"] == [A] * 8
    assert fetch(address, {"logit_bias": {str(EOS): 99.0}})["output_ids"] == [EOS]
    assert EOS not in fetch(address, {"logit_bias": {str(EOS): 9.0}, "min_new_tokens": 5})["output_ids"][:5]
    assert fetch(address, {"stop_token_ids": [said[3]]})["output_ids"] == said[: said.index(said[3]) + 1]
    bias = {"logit_bias": {str(A): 99.0}}
    assert fetch(address, {**bias, "stop": "aa"})["text"] == ""
    assert fetch(address, {**bias, "stop": "aa", "no_stop_trim": True})["text"] == "aa"
    assert fetch(address, {**bias, "stop_regex": "a{3}"})["meta_info"]["completion_tokens"] == 3
    shown = {"ignore_eos": True, "logit_bias": {str(EOS): 99.0}}
    assert fetch(address, shown)["text"] == ""
    assert fetch(address, {**shown, "skip_special_tokens": False})["text"] == "</s>" * 8
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [5, 6]}
    found = fetch(address, {"ignore_eos": True}, **asked)["meta_info"]
    assert [entry[1] for entry in found["output_token_logprobs"]] == said
    assert [one[0][1] for one in found["output_top_logprobs"]] == said  # greedy
    assert [[entry[1] for entry in one] for one in found["output_token_ids_logprobs"]] == [[5, 6]] * 8
    assert len(found["input_token_logprobs"]) == 2
    assert text == fetch(address, {"ignore_eos": True})["text"]
    body = {"text": "ab", "sampling_params": {"top_k": 3, "max_new_tokens": 4, "ignore_eos": True}}
    answer = requests.post(f"{address}/generate", json={**body, "return_sampling_mask": True}, timeout=60)
    assert answer.status_code == (400 if kind == "drafts" else 200), answer.text
    if kind == "drafts":
        assert "return_sampling_mask is not supported with speculative decoding" in answer.text
    else:
        masks = answer.json()["meta_info"]["output_token_sampling_mask"]
        assert [len(mask) for mask in masks] == [3] * 4
        assert all(id in mask for id, mask in zip(answer.json()["output_ids"], masks, strict=True))


def refuse(url: str, body: dict[str, Any]) -> str:
    answer = requests.post(url, json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    found = answer.json()
    error = found.get("error", found)
    return error if isinstance(error, str) else error["message"]


def test_refused_fields_are_a_400_at_each_endpoint(server, model):
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
    lost = {"xtc_probability": 0.5, "custom_params": {"xtc_probability": 0.5}, "xtcProbability": 0.5}
    places = {
        "/generate": ({"input_ids": PROMPT}, "custom_params in sampling_params"),
        "/v1/messages": (chat, "custom_params at /v1/chat/completions"),
        "/v1/responses": ({"model": model, "input": "Hi"}, "custom_params at /v1/chat/completions"),
    }
    for path, (body, where) in places.items():
        for name, value in lost.items():
            for stream in (False, True):
                message = refuse(f"{address}{path}", {**body, name: value, "stream": stream})
                assert message.startswith(
                    name if name in FIELDS or name == "custom_params" else f"there is no field {name}"
                )
                assert where in message
    for path, body in (("chat", {"messages": chat["messages"]}), ("generate", {"prompt": "Hi"})):
        message = refuse(
            f"{address}/api/{path}", {"model": "m", **body, "options": {"typical_p": 0.5, "num_predict": 2}}
        )
        assert message == f"typical_p can't be had in the body of /api/{path}: set typical_p in {where}"
        neutral = {
            "mirostat": 0,
            "mirostat_tau": 5.0,
            "repeat_last_n": 64,
            "repeat_penalty": 1,
            "num_predict": 2,
            "num_ctx": 99,
        }
        answer = requests.post(
            f"{address}/api/{path}", json={"model": "m", **body, "options": neutral, "stream": False}, timeout=60
        )
        assert answer.status_code == 200, answer.text
    neutral = {"dry_multiplier": 0, "dry_base": 2.0, "xtc_probability": None, "prediction": {"content": "a"}}
    assert requests.post(f"{address}/v1/chat/completions", json={**chat, **neutral}, timeout=60).status_code == 200
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
