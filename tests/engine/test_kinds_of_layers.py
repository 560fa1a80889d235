"""Every kind of layer says what transformers says, greedy and in float32, however the engine schedules the work: sinks,
latent attention, long rope, chunks, shared keys, and states per slot. So does the text of a model that also sees."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.harness import Fickle, Harness
from runners.tiny_models import MODELS, VOCAB, save
from tailrace.config import ModelConfig
from tailrace.drafting.ngram import NGram
from tailrace.engine import state_snapshots
from tailrace.engine.kv_cache import BlockCache
from tailrace.errors import ConfigError
from tailrace.models.auto_class import find_auto_class
from tailrace.runners import load_runner
from tailrace.runners.states import RecurrentState
from tailrace.runners.transformers import TransformersRunner

QUICK = ["gpt-oss", "deepseek-v3", "llama4 text", "gemma4 text", "qwen3.5", "lfm2", "granite 4", "mamba", "mistral 3"]
STATES = ["qwen3.5", "lfm2", "granite 4", "mamba", "minimax"]
COUNT = 24
# each longer than every window, chunk and original context of the models, but for the last
PROMPTS = [[5, 9, 33, 7, 100, 2] * 5, [(7 * i * i + 3) % VOCAB for i in range(70)], [77, 3]]


class Loaded:
    """One model: ours, and what transformers says to the prompts."""

    def __init__(self, name: str, folder: Path) -> None:
        save(name, folder)
        kind = find_auto_class(transformers.AutoConfig.from_pretrained(folder))
        theirs = kind.from_pretrained(folder, dtype=torch.float32).eval()
        theirs.generation_config.eos_token_id = None
        self.expected = [self.generate(theirs, prompt) for prompt in PROMPTS]
        self.runner = load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=16)

    @staticmethod
    def generate(model: Any, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=COUNT, min_new_tokens=COUNT
        )
        return out[0, len(prompt) :].tolist()

    def harness(self, **options: Any) -> Harness:
        given: dict[str, Any] = {"num_blocks": 64, "max_num_batched_tokens": 32} | options
        return Harness(self.runner, **given)

    def check(self, times: int = 1, **options: Any) -> Harness:
        """All prompts, so many times, get what transformers says."""
        harness = self.harness(**options)
        for round_ in range(times):
            for i, prompt in enumerate(PROMPTS):
                harness.submit(f"{round_} {i}", prompt, max_tokens=COUNT, ignore_eos=True)
            harness.run() if options.get("prefix_reuse") else None
        stories = harness.run()
        for round_ in range(times):
            assert [stories[f"{round_} {i}", 0, 0].tokens for i in range(len(PROMPTS))] == self.expected
        return harness

    def fickle(self) -> Fickle:
        return Fickle([prompt + said for prompt, said in zip(PROMPTS, self.expected, strict=True)], 0.6)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    @functools.cache
    def load(name: str) -> Loaded:
        return Loaded(name, tmp_path_factory.mktemp("model"))

    return load


@pytest.fixture(params=[*QUICK, *(pytest.param(n, marks=pytest.mark.long) for n in MODELS if n not in QUICK)])
def model(request, loaded) -> Loaded:
    return loaded(request.param)


@pytest.fixture(params=STATES)
def stateful(request, loaded) -> Loaded:
    return loaded(request.param)


@pytest.mark.few(1)
def test_random_models_say_something(model):
    """A model that repeats one token would hide faults."""
    assert len({token for said in model.expected for token in said}) > 8


@pytest.mark.few(2)
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_alone_and_in_chunked_batches(model, overlap):
    model.check(max_num_seqs=1, max_num_batched_tokens=512, overlap=overlap)
    model.check(max_num_batched_tokens=23, overlap=overlap)


@pytest.mark.few(1)
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_across_preemption(model, overlap):
    harness = model.check(2, num_blocks=10, overlap=overlap)
    assert harness.engine.stats().preemptions > 0 or not model.runner.block_bytes


@pytest.mark.few(1)
def test_with_prefix_reuse(model, monkeypatch):
    monkeypatch.setattr(state_snapshots, "LEAST", 1)
    monkeypatch.setattr(state_snapshots, "TAIL", 1)
    harness = model.check(2, prefix_reuse=True)
    cached = sum(story.cached for story in harness.stories.values())
    assert cached > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_with_drafts_that_are_rejected(model, overlap):
    fickle = model.fickle()
    harness = model.check(drafter=lambda _: fickle, overlap=overlap)
    stats = harness.engine.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    model.check(drafter=lambda _: NGram(), overlap=overlap, prefix_reuse=True)


# ---- states per slot


@pytest.mark.few(1)
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_forks_take_the_state_along(stateful, overlap):
    """18 forks: two more than sample with the prefill, so that some go back by a token."""
    harness = stateful.harness(max_num_seqs=24, num_blocks=256, overlap=overlap)
    harness.submit("a", PROMPTS[0], max_tokens=COUNT, n=18, ignore_eos=True)
    harness.submit("b", PROMPTS[1], max_tokens=COUNT, ignore_eos=True)
    stories = harness.run()
    assert all(stories["a", 0, i].tokens == stateful.expected[0] for i in range(18))
    assert stories["b", 0, 0].tokens == stateful.expected[1]


@pytest.mark.few(2)
def test_a_sequence_that_goes_back_too_far_begins_anew(stateful):
    """Banned strings take tokens back. What then comes is what the model says to the same tokens."""
    harness = stateful.harness()
    cache = harness.engine.cache
    harness.submit("a", PROMPTS[0], max_tokens=COUNT, ignore_eos=True)
    while not (running := harness.engine.running) or running[0].num_output < 10:
        harness.step()
    sequence = running[0]
    for back in (1, 5):  # the ring has two entries
        del sequence.tokens[-back:]
        harness.engine.lifecycle.slots.rewind(sequence.slot, back)
        harness.engine.lifecycle.trim_blocks(sequence)
        assert (sequence.num_computed == 0) == (back == 5)
        harness.step()
        harness.step()
    assert cache.state_rows == 2
    del harness.stories["a", 0, 0].tokens[sequence.num_output :]
    first = sequence.num_output
    stories = harness.run()
    assert stories["a", 0, 0].tokens[first:] == stateful.expected[0][first:]


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", ["one entry only", "forks keep what they had", "nothing begins anew"])
def test_faults_are_seen(loaded, monkeypatch, fault):
    model = loaded("qwen3.5")
    if fault == "one entry only":
        allocate = RecurrentState.allocate
        monkeypatch.setattr(
            RecurrentState, "allocate", lambda self, slots, rows, device, more=0: allocate(self, slots, 1, device, more)
        )
        tried = functools.partial(test_with_drafts_that_are_rejected, model, "off")
    elif fault == "forks keep what they had":
        monkeypatch.setattr(TransformersRunner, "copy_states", lambda self, pairs: None)
        tried = functools.partial(test_forks_take_the_state_along, model, "off")
    else:
        truncate = BlockCache.truncate_sequence

        def believe_the_ring(cache: BlockCache, sequence: Any, length: int) -> None:
            sequence.state_start = 0
            truncate(cache, sequence, length)

        monkeypatch.setattr(BlockCache, "truncate_sequence", believe_the_ring)
        tried = functools.partial(test_a_sequence_that_goes_back_too_far_begins_anew, model)
    with pytest.raises(AssertionError):
        tried()


def test_states_that_do_not_fit_are_refused(loaded, monkeypatch):
    from tailrace.config import CacheConfig, SchedulerConfig
    from tailrace.engine.engine import Engine
    from tailrace.wire.messages import ModelInfo

    runner = loaded("qwen3.5").runner
    monkeypatch.setattr(runner, "allocate_states", lambda *_: pytest.fail("allocated before they were counted"))
    with pytest.raises(ConfigError, match=r"scheduler.max_num_seqs: the model keeps a state per sequence; together"):
        Engine(runner, ModelInfo("a", VOCAB, 512, [0]), CacheConfig(memory_gib=0.001), SchedulerConfig(max_num_seqs=64))


def test_a_model_with_states_is_no_draft_model(loaded):
    runner = loaded("lfm2").runner
    memory, runner.paged.states.memory = runner.paged.states.memory, {}
    with pytest.raises(ConfigError, match="keeps a state per sequence, so it can't be a draft model"):
        runner.allocate(8)
    runner.paged.states.memory = memory
