"""A real `vllm serve` with n-gram drafts and a prefix cache (served.py): what it answers, and that it lives on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launched import make_model, make_tokenizer
from scheduled import BLOCK
from served import Server, serve, speculate, write_plug_in

CACHED = [9, 8, 7] * 11  # a whole block and one token more
assert len(CACHED) == BLOCK + 1
# name, prompt and fields: requests that run side by side, prompts of one token among them
MIXED: list[tuple[str, list[int], dict[str, Any]]] = [
    ("greedy long", CACHED, {"temperature": 0.0, "max_tokens": 60}),
    ("greedy one", [9], {"temperature": 0.0}),
    ("greedy penalties", [7, 8] * 9, {"temperature": 0.0, "presence_penalty": 0.7, "repetition_penalty": 1.2}),
    ("greedy logprobs", [9], {"temperature": 0.0, "bad_words": ["b"], "min_tokens": 4, "logprobs": 2}),
    ("seed long", CACHED, {"seed": 1, "temperature": 0.7, "max_tokens": 60}),
    ("seed one", [8], {"seed": 2, "top_p": 0.9}),
    ("seed two", [8], {"seed": 3, "top_k": 9, "n": 2}),
    ("seed bias", [9, 8], {"seed": 4, "min_p": 0.05, "logit_bias": {"7": 3.0, "300": 2.0}}),
    ("greedy bias", [9, 8, 9, 8], {"temperature": 0.0, "logit_bias": {"8": 2.0}}),
    ("seed own", [9, 8, 9, 8], {"seed": 5, "vllm_xargs": {"dry_multiplier": 1.0, "p_less_norm": True}}),
    ("free one", [7], {"temperature": 1.0}),
    ("free cut", CACHED[:BLOCK], {"temperature": 0.9, "top_k": 20, "top_p": 0.9}),
    ("greedy whole", CACHED[:BLOCK], {"temperature": 0.0, "max_tokens": 1}),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_model(folder / "model", make_tokenizer(folder / "tokenizer"))


def ask_all(server: Server) -> dict[str, Any]:
    """Return the tokens of each request. The cached prompt comes twice, alone, first greedy and then with a seed; then
    all mixed ones come twice."""
    found: dict[str, Any] = {}
    for name, fields in {"greedy": {"temperature": 0.0}, "seed": {"seed": 7, "temperature": 0.8}}.items():
        for turn in range(2):
            found[f"{name} alone {turn}"] = server.complete(CACHED, **fields)
    with ThreadPoolExecutor(len(MIXED)) as pool:
        for turn in range(2):
            answers = pool.map(lambda one: server.complete(one[1], **one[2]), MIXED)
            found |= {f"{one[0]} {turn}": answer for one, answer in zip(MIXED, answers, strict=True)}
    assert {status for status, _ in found.values()} == {200}, found
    assert server.ask("/health")[0] == 200
    for name, _, fields in MIXED:
        lengths = {len(tokens) for turn in range(2) for tokens in found[f"{name} {turn}"][1]}
        assert lengths == {fields.get("max_tokens", 12)}
    return {name: tokens for name, (_, tokens) in found.items()}


def only(found: dict[str, Any], *kinds: str) -> dict[str, Any]:
    """The requests of these kinds."""
    return {name: tokens for name, tokens in found.items() if name.startswith(kinds)}


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Tokens without drafts and without a prefix cache."""
    with serve(model, tmp_path_factory.mktemp("plain"), "--no-enable-prefix-caching") as server:
        yield ask_all(server)


def test_a_server_without_the_plug_in_has_the_same_greedy_tokens(
    model: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    with serve(model, tmp_path, "--no-enable-prefix-caching", TAILRACE_VLLM="0") as server:
        found = ask_all(server)
    assert only(found, "greedy") == only(plain, "greedy")
    assert only(found, "seed") != only(plain, "seed")


def test_a_server_with_drafts_and_cached_prompts_has_the_same_tokens(
    model: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    with serve(model, tmp_path, *speculate()) as server:
        found = ask_all(server)
        for refused in ({"vllm_xargs": {"top_n_sigma": "x"}}, {"logprob_token_ids": [3]}, {"vllm_xargs": {"n": 2}}):
            assert server.complete([9], **refused)[0] == 400
        assert server.ask("/health")[0] == 200
        log = server.log.read_text()
    assert only(found, "greedy", "seed") == only(plain, "greedy", "seed")
    assert "samples for vLLM in this process" in log
    assert "tailrace leaves" not in log


@pytest.mark.parametrize(
    ("hook", "function", "flags"),
    [
        ("sampler", "tailrace.sampling.Rows.plain", ()),
        ("verification of drafts", "tailrace.integrations.vllm.verification.make_draft_rows", speculate()),
    ],
)
def test_a_server_lives_on_whatever_tailrace_raises(
    hook: str, function: str, flags: tuple[str, ...], model: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    """Each second step fails. vLLM's own sampler serves it, and greedy tokens are the same. The log has one traceback,
    and how many errors there were."""
    env = write_plug_in(tmp_path / "plug-in", function)
    with serve(model, tmp_path / "server", *flags, **env) as server:
        found = ask_all(server)
        log = server.log.read_text()
    assert only(found, "greedy") == only(plain, "greedy")
    assert log.count(f"after an error in tailrace's {hook} (RuntimeError); please report it: planted (1 so far)") == 1
    assert log.count("RuntimeError: planted") == 1
    assert "planted (10 so far)" in log
