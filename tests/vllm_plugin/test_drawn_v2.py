"""Processed logprobs and sampling masks in vLLM's V2 runner (drawn_v2.py): those of tailrace's reference sampler."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launched import start
from release import since

pytestmark = since("0.31", "tailrace leaves its V2 runner alone (test_built_differently.py)")
LEFT = "logprob_token_ids"  # vLLM's own sampler serves such a request


@pytest.fixture(scope="module")
def found() -> Any:
    return cache(lambda mode: start("drawn_v2.py", Path(), mode))


def is_close(one: float, other: float) -> bool:
    return one == pytest.approx(other, abs=1e-4)


def find_difference(found: dict[str, Any], reference: dict[str, Any]) -> str:
    """The first part of a row's report that differs; "" if none does."""
    if found["token"] != reference["token"]:
        return "token"
    if found["rank"] != reference["rank"]:
        return "rank"
    if not is_close(found["logprob"], reference["logprob"]):
        return "logprob"
    pairs = zip(found["top"], reference["top"], strict=True)
    return "" if all(a[0] == b[0] and is_close(a[1], b[1]) for a, b in pairs) else "top"


@pytest.mark.parametrize("mode", ["masks", "logprobs"])
def test_logprobs_are_of_the_distribution_that_was_drawn_from(mode: str, found: Any) -> None:
    drawn = found(mode)
    differing = [row for row in drawn["rows"] if find_difference(row["found"], row["reference"])]
    assert len(drawn["rows"]) > 20
    assert not differing, differing[0]


def test_masks_have_the_ids_that_could_be_drawn(found: Any) -> None:
    rows = found("masks")["rows"]
    assert len({len(row["found"]["mask"]) for row in rows}) > 5
    for row in rows:
        assert row["found"]["mask"] == row["reference"]["mask"], row["fields"]


@pytest.mark.parametrize("mode", ["masks", "logprobs"])
def test_rows_that_vllm_draws_keep_its_logprobs(mode: str, found: Any) -> None:
    drawn = found(mode)
    assert len(drawn["kept"]) == drawn["fallbacks"].pop(LEFT) > 2
    assert all(drawn["kept"])
    assert not drawn["fallbacks"]


def test_vllms_own_logprobs_of_the_same_rows_are_seen_to_be_wrong(found: Any) -> None:
    """The planted fault."""
    rows = found("planted")["rows"]
    assert {find_difference(row["found"], row["reference"]) for row in rows} >= {"logprob"}
