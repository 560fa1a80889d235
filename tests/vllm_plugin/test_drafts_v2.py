"""Drafts in vLLM's V2 runner (drafts_v2.py): the tokens are those of a server without drafts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launched import start
from release import since
from test_history_v2 import list_wrong

pytestmark = since("0.31", "tailrace leaves its V2 runner alone (test_built_differently.py)")
LEFT = "logprob_token_ids"  # vLLM's own verification serves such a request


@pytest.fixture(scope="module")
def found() -> Any:
    return cache(lambda mode: start("drafts_v2.py", Path(), mode))


@pytest.mark.parametrize("mode", ["cpu", "gpu", "left"])
def test_tokens_are_those_without_drafts(mode: str, found: Any) -> None:
    served = found(mode)
    assert served["offered"] > served["accepted"] > 30
    assert (served["fallbacks"].pop(LEFT, 0) > 10) == (mode == "left")
    assert not served["fallbacks"]
    assert not list_wrong(served), list_wrong(served)[0]


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_processed_logprobs_are_those_without_drafts(mode: str, found: Any) -> None:
    reports = [one["logprobs"] for one in found(mode)["requests"] if one["logprobs"]]
    assert len(reports) > 3
    for mine, reference in reports:
        assert mine == pytest.approx(reference, abs=1e-4)


def test_positions_of_the_host_are_seen_to_be_wrong(found: Any) -> None:
    """The planted fault."""
    assert list_wrong(found("late"))
