"""docs/add/runner.md: the guide's runner, by the code on the page, has all that the engine does for runners: adapters,
overlap, kernels compiled at start. What a runner leaves out is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.harness import Harness
from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting import DRAFTERS, load_drafter
from tailrace.drafting.base import Draft, Drafter
from tailrace.errors import ConfigError
from tailrace.params import SamplingParams
from tailrace.runners import check_adapters
from tailrace.runners.base import ModelRunner, StatefulRunner
from tailrace.sampling import Sampler, Slots
from tailrace.wire.messages import Failed, Submit

GUIDE = Path(__file__).resolve().parents[2] / "docs/add/runner.md"
VOCAB = 50


@pytest.fixture(scope="module")
def runner_of() -> Any:
    """The guide's class."""
    [code] = re.findall(r"^```python.*?\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "bigram"}
    exec(code, names)
    return names["BigramRunner"]


def stepping(by: int) -> torch.Tensor:
    """The likeliest next id is the last one plus `by`."""
    return 9 * torch.eye(VOCAB).roll(by, 1)


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_adapters_and_overlap(runner_of, overlap: str):
    harness = Harness(runner_of(stepping(1), {"twos": 2 * stepping(2), "threes": 2 * stepping(3)}), overlap=overlap)
    assert harness.engine.steps.device.depth == (overlap == "on")
    for name in ("", "twos", "threes", "fours"):
        params = SamplingParams(temperature=0.0, max_tokens=9)
        harness.engine.submit(Submit(name, 0, [7, 3], params, adapter=name))
    stories = {key[0]: story for key, story in harness.run().items()}
    for by, name in enumerate(("", "twos", "threes"), 1):
        assert stories[name].tokens == [3 + by * i for i in range(1, 10)]
    refused = stories["fours"].end
    assert isinstance(refused, Failed)
    assert (refused.param, 'no adapter "fours"' in refused.message) == ("model", True)


def test_a_gpu_is_warmed_up_and_overlaps(runner_of, monkeypatch: pytest.MonkeyPatch):
    warm: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Sampler, "warm_up", lambda self, *given: warm.append(given))
    runner = runner_of(stepping(1).bfloat16(), {})
    assert Harness(runner).engine.steps.device.depth == 0
    assert not warm
    runner.device = torch.device("cuda")
    assert Harness(runner).engine.steps.device.depth == 1
    assert warm == [({torch.bfloat16, torch.float32}, runner.device)]


def test_adapters_that_the_runner_does_not_apply_are_refused(runner_of):
    check_adapters(ModelConfig(lora="a=/x"), runner_of(stepping(1), {"a": stepping(2)}))
    with pytest.raises(ConfigError, match=r"model\.lora \(--lora\): BigramRunner applies no adapters"):
        check_adapters(ModelConfig(lora="a=/x"), runner_of(stepping(1), {}))


@pytest.mark.parametrize(("kind", "method"), [(ModelRunner, "copy_blocks"), (StatefulRunner, "copy_states")])
def test_a_method_that_is_left_out_is_named(kind: type, method: str):
    given = {name: lambda *_: None for name in kind.__abstractmethods__ - {method}}  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=method):
        type("Partial", (kind,), given)(VOCAB, 512, torch.device("cpu"), torch.float32)


class Watching(Drafter):
    """By docs/add/drafter.md, all defaults but the layers."""

    captures = (1,)

    def draft(self, requests):
        return [Draft([]) for _ in requests]

    def remove(self, slot):
        pass


def test_a_drafter_that_watches_needs_layers(runner_of, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DRAFTERS, "ngram", lambda where: Watching())
    with pytest.raises(ConfigError, match="needs a model with layers"):
        load_drafter(
            SpeculationConfig(drafter="ngram"), ModelConfig(), runner_of(stepping(1), {}), Sampler(Slots(2, VOCAB)), 16
        )
    assert (Watching().draws, Watching().cache_bytes) == (False, 0)
