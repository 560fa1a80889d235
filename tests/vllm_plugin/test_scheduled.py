"""vLLM's own scheduler with its prefix cache and n-gram drafts (scheduled.py): whole cached blocks and one more token,
prompts of one token beside running requests, crowds, split prompts, preemption, sequences, grammars."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from launched import make_model, make_tokenizer
from launched import start as start_script
from release import since
from scheduled import FAULTS

start = functools.partial(start_script, "scheduled.py")
ERROR = "an error in tailrace's "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_model(folder / "model", make_tokenizer(folder / "tokenizer"))


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[str, Any]:
    """Without drafts and without a prefix cache."""
    found = start(model, "plain")
    assert found["fallbacks"] == {}
    return found


def check_tokens(found: dict[str, Any], wanted: dict[str, Any], *kinds: str) -> None:
    """Requests of these kinds have the tokens and the logprobs that they have elsewhere."""
    names = [name for name in found["tokens"] if name.endswith(kinds)]
    assert len(names) >= 8
    for name in names:
        assert found["tokens"][name] == wanted["tokens"][name], name
        places = list(zip(found["logprobs"][name], wanted["logprobs"][name], strict=True))
        for a, b in places:
            assert dict(a) == pytest.approx(dict(b), abs=1e-4), name


def check_faults(found: dict[str, Any], plain: dict[str, Any]) -> None:
    """Each kind of error came again and again, and ended no request. Greedy requests have vLLM's tokens, which are the
    same. Afterwards requests with seeds have tailrace's tokens again."""
    served = {name: len(tokens) for name, tokens in plain["tokens"].items() if name.startswith(("0-", "alone"))}
    for fault in FAULTS:
        tokens, counted = found[fault]["tokens"], Counter(found[fault]["fallbacks"])
        assert {name: len(tokens[name]) for name in served} == served
        check_tokens(found[fault], plain, "greedy")
        assert sum(n for reason, n in counted.items() if reason.startswith(ERROR)) > 0 or fault in ("none", "merged")
    check_tokens(found["none"], plain, "greedy", "seed")
    assert found["log"].count("RuntimeError: planted") >= 3  # tracebacks: the first of each kind


def test_drafts_and_cached_prompts_change_no_token(model: Path, plain: dict[str, Any]) -> None:
    """Greedy requests and requests with a seed. vLLM pads drafts with −1."""
    found = start(model, "drafted")
    assert found["padded"] > 50
    assert found["drafts"] > 50
    check_tokens(found, plain, "greedy", "seed")
    assert len(found["tokens"]) == len(plain["tokens"])
    assert found["fallbacks"] == {}


def test_drafts_of_any_shape_change_no_token(model: Path, plain: dict[str, Any]) -> None:
    """−1, or an id beyond the vocabulary, at any place of a list, also before ids; nothing but that; short lists, and
    requests without one."""
    found = start(model, "odd")
    assert min(found[name] for name in ("padded", "beyond", "drafts", "accepted")) > 50
    check_tokens(found, plain, "greedy", "seed")
    assert found["fallbacks"] == {}


def test_greedy_tokens_are_those_without_the_plug_in(model: Path, plain: dict[str, Any]) -> None:
    off = start(model, "greedy", TAILRACE_VLLM="off")
    assert off["padded"] > 20
    check_tokens(off, plain, "greedy")


def test_split_prompts_and_preemption_change_no_token(model: Path, plain: dict[str, Any]) -> None:
    found = start(model, "split")
    assert found["padded"] > 0
    assert found["preempted"] > 0
    check_tokens(found, plain, "greedy")
    assert found["fallbacks"] == {}


def test_requests_that_vllm_serves_change_no_token_of_others(model: Path, plain: dict[str, Any]) -> None:
    """Their own drafts are dropped: vLLM's own verification of sampled drafts ends its engine on a CPU."""
    found = start(model, "refused")
    check_tokens(found, plain, "greedy", "seed")
    assert list(found["fallbacks"]) == ["logprobs of the whole vocabulary"]


@since("0.32", "it refuses masks beside drafts itself")
def test_each_token_of_padded_drafts_has_its_sampling_mask(model: Path) -> None:
    found = start(model, "masked")
    assert found["padded"] > 50
    for name, masks in found["masks"].items():
        [tokens] = found["tokens"][name]
        assert all(token in mask for token, mask in zip(tokens, masks, strict=True))
    assert found["masks"].keys() == found["tokens"].keys()
    assert found["fallbacks"] == {}


def test_an_error_in_tailrace_ends_no_request(model: Path, plain: dict[str, Any]) -> None:
    found = start(model, "faulty")
    check_faults(found, plain)
    assert list(found["none"]["fallbacks"]) == ["logprobs of the whole vocabulary"]
