"""vLLM really started (started.py): alone, with two ranks, with two engines, with its V2 runner."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from release import since
from started import MASKED, SEEDED, TOKENS

HERE = Path(__file__).parent
LIMIT_S = 900  # a start takes half a minute on an idle machine; tests do not depend on speed
SIZES = [
    "--vocab",
    "512",
    "--layers",
    "2",
    "--hidden",
    "64",
    "--inner",
    "128",
    "--heads",
    "2",
    "--kv-heads",
    "2",
    "--spread",
    "3",
]
# V2 takes twelve seconds per token there: kernels in the interpreter
STEPS_V2 = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    script = HERE.parents[1] / "bench" / "random_model.py"
    subprocess.run([sys.executable, str(script), str(folder), "--tokenizer", str(folder), *SIZES], check=True)
    return folder


def start(model: Path, mode: str, **env: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "started.py"), str(model), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT ")) | {"log": done.stdout + done.stderr}


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
