"""vLLM really started (started.py): alone, with two ranks, with two engines, with its V2 runner."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
from launched import make_model
from launched import start as start_script
from release import since
from started import FOLLOWING, MASKED, SEEDED, TOKENS, UNCUT

start = functools.partial(start_script, "started.py")
STEPS_V2 = 4  # V2 takes up to twelve seconds per token there: kernels in the interpreter


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, Any]:
    found = start(model, "alone")
    assert found["fallbacks"] == [{}]
    assert len({tuple(tokens) for tokens in found["tokens"]}) == len(found["tokens"])
    return found


def test_without_the_plug_in_the_tokens_are_others(model: Path, alone: dict[str, Any]) -> None:
    """What the other tests compare is tailrace's."""
    off = start(model, "alone", TAILRACE_VLLM="off")
    assert off["tokens"][len(SEEDED) - 1] == alone["tokens"][len(SEEDED) - 1]  # greedy
    assert off["tokens"][: len(SEEDED) - 1] != alone["tokens"][: len(SEEDED) - 1]


def test_sampling_masks_of_the_v1_runner(model: Path) -> None:
    """vLLM's own place for them, through its scheduler and its outputs. Each mask has what may be drawn: the sum of
    processed probabilities over it is 1."""
    found = start(model, "masks")
    for fields, tokens, masks, logprobs in zip(MASKED, found["tokens"], found["masks"], found["logprobs"], strict=True):
        assert len(tokens) == len(masks) == TOKENS
        for token, mask, listed in zip(tokens, masks, logprobs, strict=True):
            assert token in mask
            assert mask == sorted(mask)
            assert len(mask) <= fields["top_k"]
            if len(mask) <= 5:  # so many are listed
                assert math.isclose(sum(math.exp(listed[str(id)]) for id in mask), 1, rel_tol=1e-5)


def test_two_ranks_of_tensor_parallelism_agree(model: Path, alone: dict[str, Any]) -> None:
    found = start(model, "tensor")
    assert found["log"].count("samples for vLLM in this process") == 2
    assert found["ranks"][0] == found["ranks"][1]  # rows without seeds among them
    assert len(found["ranks"][0]) >= TOKENS
    first, second = found["planted"]
    assert len(first) >= TOKENS
    assert first != second  # the planted fault is seen
    assert found["tokens"][: len(SEEDED)] == alone["tokens"][: len(SEEDED)]
    assert found["fallbacks"] == [{}, {}]


def test_two_engines_of_data_parallelism_give_the_same_tokens_for_a_seed(model: Path, alone: dict[str, Any]) -> None:
    found = start(model, "data")
    first, second = found["ranks"]
    assert first[: len(SEEDED)] == second[: len(SEEDED)] == alone["tokens"][: len(SEEDED)]
    assert all(a != b for a, b in zip(first[len(SEEDED) :], second[len(SEEDED) :], strict=True))


@since("0.31", "tailrace leaves its V2 runner alone (test_built_differently.py)")
def test_the_v2_runner_gives_the_tokens_of_the_v1_runner(model: Path, alone: dict[str, Any]) -> None:
    found = start(model, "v2")
    assert "(V2)" in found["log"]
    assert found["fallbacks"] == [{}]
    wanted = [tokens[:STEPS_V2] for tokens in alone["tokens"][: len(SEEDED)]]
    assert found["tokens"][: len(SEEDED)] == wanted


@pytest.fixture(scope="module")
def following(model: Path) -> dict[str, Any]:
    return start(model, "following")


@since("0.31", "tailrace leaves its V2 runner alone (test_built_differently.py)")
def test_fields_that_follow_the_output_give_the_v1_runners_tokens(model: Path, following: dict[str, Any]) -> None:
    found = start(model, "v2-following")
    assert found["fallbacks"] == following["fallbacks"] == [{}]
    assert found["tokens"] == following["tokens"]
    assert found["tokens"][-1][:2] == FOLLOWING[-1]["extra_args"]["forced_token_ids"]


@since("0.31", "tailrace leaves its V2 runner alone (test_built_differently.py)")
def test_drafts_of_the_v2_runner_change_no_token(model: Path, following: dict[str, Any]) -> None:
    found = start(model, "v2-drafts")
    assert found["fallbacks"] == [{}]
    assert found["tokens"] == following["tokens"][: len(found["tokens"])]
    assert {1, 2, 3} <= {count for step in found["stood"] for count in step}


@since("0.31", "tailrace leaves its V2 runner alone (test_built_differently.py)")
def test_after_an_error_in_the_v2_runner_vllm_draws_what_was_asked(model: Path, alone: dict[str, Any]) -> None:
    """tailrace raises at the second token: the first ones are tailrace's, and greedy requests do not notice."""
    found = start(model, "v2-error")
    [counted] = found["fallbacks"]
    assert counted.pop("an error in tailrace's draws of the V2 runner (RuntimeError)") == 1
    assert counted == {"requests of a step with an error in tailrace": len(UNCUT) * (STEPS_V2 - 2)}
    for index, tokens in zip(UNCUT, found["tokens"], strict=True):
        drawn = STEPS_V2 if SEEDED[index].get("temperature") == 0.0 else 1
        assert tokens[:drawn] == alone["tokens"][index][:drawn]
        assert len(tokens) == STEPS_V2
