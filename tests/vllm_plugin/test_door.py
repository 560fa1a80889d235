"""What a real `vllm serve` answers to fields of tailrace's: they act, or the answer is a 400 that names the field. A
logits processor of somebody else's is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from launched import HERE, make_model, make_tokenizer
from served import Server, serve
from shared_examples import company

from tailrace.integrations.vllm import refused_fields
from tailrace.integrations.vllm.xargs import OURS, SHARED
from tailrace.params import FIELDS

PROMPT = [97 - 33, 98 - 33, 99 - 33] * 4
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("top_nsigma", {"top_nsigma": 1.5}, "did you mean top_n_sigma"),
    ("temperature", {"temperature": 0.5}, "set vLLM's own temperature"),
    ("structured_outputs", {"structured_outputs": "a"}, "set vLLM's own structured_outputs"),
    ("processors", {"processors": '{"nobodys": {}}'}, "there is no"),
    ("forced_token_ids", {"forced_token_ids": [100_000]}, "token id 100000"),
    ("mirostat", {"mirostat": "1"}, "an integer"),
    ("p_less", {"p_less": 2}, "true or false"),
    ("dry_sequence_breakers", {"dry_multiplier": 1, "dry_sequence_breakers": ["a", 3]}, "a list of strings"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    model: Path = make_model(folder / "model", make_tokenizer(folder / "tokenizer"))
    path = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    flags = ("--logits-processors", "custom:Adding", "--max-logprobs", "-1")
    with serve(model, tmp_path_factory.mktemp("server"), *flags, PYTHONPATH=path) as started:
        yield started


def ask(server: Server, own: dict[str, Any], **fields: Any) -> list[int]:
    status, answer = server.complete(PROMPT, vllm_xargs=own, **{"seed": 7, "max_tokens": 24, **fields})
    assert status == 200, answer
    return answer[0]


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_act_is_a_400_that_names_it(server: Server, stream: bool) -> None:
    refused = [(name, {name: 1}, reason) for name, reason in refused_fields.V1.items() if name not in SHARED]
    for name, own, text in refused + WRONG:
        status, answer = server.complete([9], vllm_xargs=own, stream=stream)
        assert status == 400, (name, answer)
        error = json.loads(answer)["error"]
        assert error["param"] == name
        assert name in error["message"]
        assert text in error["message"]
    for name, text in (
        ("dry_multiplier", "set dry_multiplier in vllm_xargs"),
        ("banned_strings", "can't take tokens back"),
    ):
        status, answer = server.complete([9], stream=stream, **{name: 1})
        assert status == 400, (name, answer)
        error = json.loads(answer)["error"]
        assert error["param"] == name
        assert text in error["message"]
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "stream": stream}
    status, answer = server.ask("/v1/messages", {**body, "dry_multiplier": 1})
    assert status == 400, answer
    assert "set dry_multiplier in vllm_xargs" in answer
    for fields in ({"logprobs": -1}, {"logprob_token_ids": [3], "logprobs": 1}):
        status, answer = server.complete([9], vllm_xargs={"top_n_sigma": 1.5}, stream=stream, **fields)
        assert status == 400, answer
        assert "top_n_sigma can't be had beside" in answer
    assert server.ask("/health")[0] == 200


def test_true_and_one_are_the_same(server: Server) -> None:
    bare = ask(server, {}, temperature=1.5)
    for name in ("p_less", "min_k"):
        on = ask(server, {name: True}, temperature=1.5)
        assert on == ask(server, {name: 1}, temperature=1.5)
        assert on != bare
        assert ask(server, {name: False}, temperature=1.5) == bare
    assert ask(server, {"mirostat": 2.0, "mirostat_tau": 1.0}) == ask(server, {"mirostat": 2, "mirostat_tau": 1.0})


def test_dry_has_the_breakers_of_our_own_server(server: Server) -> None:
    """The engine's tokenizer converts the texts."""
    own = {"dry_multiplier": 5.0, "dry_allowed_length": 1}
    texts = ["\n", ":", '"', "*"]
    default = ask(server, own, temperature=0.0)
    assert default == ask(server, {**own, "dry_sequence_breakers": texts}, temperature=0.0)
    assert default == ask(server, {**own, "dry_sequence_breakers": json.dumps(texts)}, temperature=0.0)
    many = {**own, "dry_sequence_breakers": list(range(500))}
    assert ask(server, many, temperature=0.0) == ask(server, {}, temperature=0.0) != default


@pytest.mark.parametrize("name", OURS)
def test_each_own_field_is_taken_over_http(name: str, server: Server) -> None:
    """As JSON has it, or as JSON text where vLLM takes no such JSON."""
    if name == "processors":
        return  # none is registered: WRONG
    own = {other: msgspec.to_builtins(value) for other, value in company(name).items()}
    fields = {other: own.pop(other) for other in list(own) if other in SHARED}
    own = {
        other: json.dumps(value) if isinstance(value, dict) or other == "sequence_bias" else value
        for other, value in own.items()
    }
    tokens = ask(server, own, **fields)
    assert len(tokens) == 24
    assert name not in ("forced_token_ids",) or tokens[0] == 9
    assert set(OURS) < set(FIELDS)


def test_a_custom_processor_changes_its_own_request_and_drops_no_field(server: Server) -> None:
    own = {"forced_token_ids": [5, 6], "no_repeat_ngram_size": 2}
    bare, changed = ask(server, own), ask(server, {**own, "favoured": 300, "bonus": 15.0})
    assert bare[:2] == changed[:2] == [5, 6]
    assert changed.count(300) > bare.count(300)
    pairs = list(pairwise(changed))
    assert len(set(pairs)) == len(pairs)
    assert "tailrace leaves" not in server.log.read_text()
