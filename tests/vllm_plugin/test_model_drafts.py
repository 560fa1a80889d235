"""Drafts that a model makes (drafters.py), through vLLM's own scheduler, drafters and runner (scheduled.py). Where vLLM
draws them, they come with their distributions."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from drafters import make_drafters
from free_draws import LIMIT, measure_misfit
from launched import make_model, make_tokenizer
from launched import start as start_script
from test_scheduled import check_faults, check_tokens

start = functools.partial(start_script, "scheduled.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = make_model(folder / "model", make_tokenizer(folder / "tokenizer"))
    make_drafters(model)
    return model


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[str, Any]:
    """Without drafts and without a prefix cache."""
    return start(model, "plain")


def check_drafts(found: dict[str, Any], plain: dict[str, Any]) -> None:
    """Many drafts came, and some stood; requests that are greedy or have a seed kept their tokens. vLLM padded some
    requests' drafts with −1: then there are no distributions in that step, since a new request had no drafts before."""
    assert found["drafts"] > 200
    assert found["accepted"] > 20
    assert found["padded"] > 20
    check_tokens(found, plain, "greedy", "seed")
    assert found["fallbacks"] == {}


def test_drafts_of_a_model_change_no_fixed_token_and_no_distribution(model: Path, plain: dict[str, Any]) -> None:
    found = start(model, "near")
    assert found["dense"] > 200
    check_drafts(found, plain)
    assert measure_misfit(found["free"]) < LIMIT


def test_drafts_of_an_eagle_head_change_no_fixed_token(model: Path, plain: dict[str, Any]) -> None:
    found = start(model, "eagle")
    assert found["dense"] > 200
    check_drafts(found, plain)


def test_drafts_without_distributions_change_no_fixed_token(model: Path, plain: dict[str, Any]) -> None:
    found = start(model, "medusa")
    assert found.get("dense", 0) == 0
    check_drafts(found, plain)


def test_an_error_in_tailrace_ends_no_request_with_drafts_of_a_model(model: Path, plain: dict[str, Any]) -> None:
    check_faults(start(model, "faulty-near"), plain)
