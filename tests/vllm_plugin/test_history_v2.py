"""Requests that read their output in vLLM's V2 runner (history_v2.py): their tokens are those of tailrace's reference
sampler, whose host knows all tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from history_v2 import OWN, STATEFUL, SYNTHID
from launched import start
from release import since

pytestmark = since("0.31", "tailrace leaves its V2 runner alone (test_built_differently.py)")


@pytest.fixture(scope="module")
def found() -> Any:
    return cache(lambda mode: start("history_v2.py", Path(), mode))


def list_wrong(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests whose tokens are not those of the reference."""
    return [one for one in found["requests"] if one["tokens"] != one["reference"]]


@pytest.mark.parametrize("mode", ["cpu", "gpu", "custom"])
def test_tokens_are_those_of_a_host_that_knows_them(mode: str, found: Any) -> None:
    served = found(mode)
    assert served["preempted"] > 5
    assert not served["fallbacks"]
    assert not list_wrong(served), list_wrong(served)[0]


def test_a_logits_processor_of_somebody_elses_leaves_no_draw_to_vllm(found: Any) -> None:
    """The requests that use it have their tokens as with logit_bias, and the others as without it."""
    boosted = ["boosted" in one["fields"] for one in found("custom")["requests"]]
    assert 5 < sum(boosted) < len(boosted) - 5


def test_every_field_is_drawn(found: Any) -> None:
    drawn = [one["fields"] for one in found("cpu")["requests"]]
    for name in {name for fields in (*OWN, *STATEFUL, *SYNTHID) for name in fields}:
        assert any(name in fields for fields in drawn), name


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_processed_logprobs_are_of_the_distribution_that_was_drawn_from(mode: str, found: Any) -> None:
    reports = [one["logprobs"] for one in found(mode)["requests"] if one["logprobs"]]
    assert len(reports) > 1
    for mine, reference in reports:
        assert mine == pytest.approx(reference, abs=1e-4)


@pytest.mark.parametrize("mode", ["short", "forgetful"])
def test_planted_faults_are_seen(mode: str, found: Any) -> None:
    """One token too few is read; a preempted request loses what mirostat or adaptive-p has learnt."""
    wrong = list_wrong(found(mode))
    assert wrong
    assert mode == "short" or all({"mirostat", "adaptive_target"} & set(one["fields"]) for one in wrong)
