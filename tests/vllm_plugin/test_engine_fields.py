"""vLLM's own fields that no sampler acts on, and tailrace's beside a thinking budget, in a real engine
(engine_fields.py): with drafts and without."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launched import make_model, make_tokenizer, start

from tailrace.integrations.vllm import refused_fields

# vLLM's V1 runner refuses the last two itself
ENGINE_FIELDS = (
    *("n", "max_tokens", "ignore_eos", "stop", "stop_token_ids", "repetition_detection", "grammar", "thinking"),
    *("prompt_logprobs", "logprobs", "logprob_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
    *("output_kind", "prompt_logprob_start", "prompt_logprob_token_ids"),
)
PATHS = {"plain": refused_fields.V1, "drafted": refused_fields.V1_DRAFTS}
MODES = tuple(PATHS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    model: Path = make_model(folder / "model", make_tokenizer(folder / "tokenizer"))
    return cache(lambda mode: start("engine_fields.py", model, mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENGINE_FIELDS[:-2])
def test_a_field_of_the_engine_acts(name: str, mode: str, found: Any) -> None:
    if name in PATHS[mode]:
        pytest.skip("refused at the door")
    assert found(mode)["acts"][name], name


@pytest.mark.parametrize("mode", MODES)
def test_own_fields_act_beside_a_thinking_budget(mode: str, found: Any) -> None:
    """The tokens are those without the neighbour, and without drafts; nothing is left to vLLM's own sampler."""
    alone, beside = found(mode)["near"]
    assert alone == beside == found("plain")["near"][0]
    assert alone[0][:2] == [5, 6]
    assert not found(mode)["fallbacks"]
    assert set(found(mode)["served"]) == ({"logprob_token_ids"} if mode == "plain" else set())
    assert mode == "plain" or found(mode)["drafts"] > 20
