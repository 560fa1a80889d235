"""Drafters with weights, loaded as a server loads them, in a whole engine: the tokens are those of the engine
without."""

from __future__ import annotations

import functools
import random
from functools import partial

import pytest

from drafting import test_block, test_eagle
from drafting.heads import LAYERS, VOCAB, save, save_target
from engine.harness import Harness
from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting import DRAFTERS, load_drafter
from tailrace.drafting.base import Drafter
from tailrace.engine import engine as engine_module
from tailrace.engine.speculation import Speculator
from tailrace.errors import ConfigError
from tailrace.request.options import Speculation
from tailrace.runners import load_runner
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling import Sampler, Slots

MODEL = ModelConfig(dtype="float32", threads=1, device="cpu")
NAMES = (
    "early_exit",
    "draft_model",
    "eagle-1",
    "eagle-3",
    "block",
    "block-2",
    "block-spark",
)  # a drafter, and which of its heads
PROMPTS = [[5, 6, 7, 8, 5, 6, 7], list(range(40)), [9] * 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_target(tmp_path_factory.mktemp("target"))


def settings(name: str, target, tmp_path) -> SpeculationConfig:
    match name:
        case "early_exit":
            return SpeculationConfig(drafter="early_exit", layers=LAYERS - 1)
        case "draft_model":
            return SpeculationConfig(drafter="draft_model", model=str(target), cache_gib=0.01)
        case "eagle-1":
            weights = save(tmp_path / name, *test_eagle.first_head())
        case "eagle-3":
            weights = save(tmp_path / name, *test_eagle.third_head())
        case "block-2":
            weights = save(tmp_path / name, *test_block.dflash2())
        case "block-spark":
            weights = save(tmp_path / name, *test_block.dspark("gated"))
        case _:
            weights = save(tmp_path / name, *test_block.dflash())
    return SpeculationConfig(drafter=name.partition("-")[0], model=str(weights), cache_gib=0.01)  # type: ignore[arg-type]


def stories(folder, config: SpeculationConfig | None, counts=None, **asked):
    """What three requests become. counts: how many guesses each gets, instead of all it may have."""
    runner = load_runner(MODEL, folder, block_size=16)
    seen = []

    def made(sampler) -> Drafter:
        drafter = load_drafter(config, MODEL, runner, sampler, 16)
        observe = drafter.observe
        drafter.observe = lambda sight: (seen.append(sum(sight.count)), observe(sight))
        return drafter

    harness = Harness(runner, drafter=made if config else None, max_num_batched_tokens=16, eos=VOCAB - 1)
    if counts is not None:
        harness.engine.speculator.lengths.counts = counts
    for place, prompt in enumerate(PROMPTS):
        fields = {
            "max_tokens": 24,
            "temperature": 0.7,
            "seed": place,
            "ignore_eos": True,
            "n": 1 + (place == 1),
        } | asked
        harness.submit(f"r{place}", prompt, **fields)
    found = {name: story.tokens for name, story in harness.run().items()}
    return found, harness, seen


@functools.cache
def plainly(folder, **asked):
    """The same without a drafter."""
    return stories(folder, None, **asked)


def test_every_drafter_with_a_model_runs_in_an_engine():
    """combinations.py has the drafters that read tokens alone, and test_mtp.py the heads of models."""
    assert {name.partition("-")[0] for name in NAMES} | {"ngram", "suffix", "mtp"} == {*DRAFTERS}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_they_change_nothing(folder, tmp_path, name):
    config = settings(name, folder, tmp_path)
    plain, slow, _ = plainly(folder)
    exact, harness, seen = stories(folder, config, speculation=Speculation(rule="exact"))
    assert exact == plain
    assert harness.engine.counters.drafted_tokens
    assert harness.engine.speculator.failures == 0
    assert bool(seen) == bool(harness.engine.speculator.drafter.captures)
    if name == "draft_model":  # the target itself: every guess stands
        assert harness.engine.counters.accepted_tokens == harness.engine.counters.drafted_tokens
        assert harness.engine.counters.steps < slow.engine.counters.steps / 2
    for rule in ("rejection", "block"):
        lawful, harness, _ = stories(folder, config, speculation=Speculation(rule=rule))
        assert all(len(tokens) == 24 for tokens in lawful.values())
        assert harness.engine.speculator.failures == 0
    greedy, _, _ = stories(folder, config, temperature=0.0, n=1)
    assert greedy == plainly(folder, temperature=0.0, n=1)[0]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "blind"),
    [
        *((name, False) for name in NAMES),
        *(
            pytest.param(
                *(name, True), id=f"{name}, that sees nothing", marks=() if name == "eagle-3" else pytest.mark.long
            )
            for name in NAMES
        ),
    ],
)
def test_overlap_changes_nothing(folder, tmp_path, name, blind, monkeypatch):
    """Neither what is said, nor how much is guessed and stands. (Blind: a fault that the test must see.)"""
    config = settings(name, folder, tmp_path)
    plain, _, _ = plainly(folder)
    found = {}
    for mode in ("off", "on"):
        monkeypatch.setattr(Harness, "overlap", mode)
        if blind and mode == "on":
            monkeypatch.setattr(Speculator, "must_observe", lambda self, work: False)
            monkeypatch.setattr(Speculator, "observe", lambda self, seen, runner: None)
        said, harness, _ = stories(folder, config, speculation=Speculation(rule="exact"))
        assert said == plain
        assert harness.engine.speculator.failures == 0
        found[mode] = harness.engine.counters
    much = found["on"].drafted_tokens > 0.8 * found["off"].drafted_tokens
    assert (much and found["on"].accepted_tokens >= 0.8 * found["off"].accepted_tokens) or blind
    assert not (blind and much) or not load_captures(config, folder)


def load_captures(config: SpeculationConfig, folder) -> tuple[int, ...]:
    """The layers that the drafter wants to see."""
    runner = load_runner(MODEL, folder, block_size=16)
    return load_drafter(config, MODEL, runner, Sampler(Slots(8, VOCAB)), 16).captures


GUIDED = {"guidance_scale": 1.5, "negative_prompt": (3,)}
GUIDED_IN_LONG_TESTS = ("early_exit", "eagle-3")  # the others without guidance


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        pytest.param(
            *(name, asked),
            id=f"{name}, guided" if asked else name,
            marks=pytest.mark.long if (name in GUIDED_IN_LONG_TESTS) == bool(asked) else (),
        )
        for name in NAMES
        for asked in ({}, GUIDED)
    ],
)
def test_a_seed_gives_the_same_however_many_guesses(folder, tmp_path, name, asked):
    """Their number follows the time that steps take. Nothing is said of a rule here."""
    config = settings(name, folder, tmp_path)
    plain, _, _ = plainly(folder, **asked)
    rng = random.Random(1)
    for most in (1, 4):
        found, harness, _ = stories(
            folder,
            config,
            lambda asks, others, most=most: [rng.randint(0, min(limit, most)) for _, limit in asks],
            **asked,
        )
        assert harness.engine.counters.drafted_tokens
        assert found == plain


@pytest.mark.parametrize("name", sorted({name.partition("-")[0] for name in NAMES}))
def test_what_is_missing_is_said(name):
    runner = ScriptedRunner(VOCAB, lambda ids: 1, 64)
    with pytest.raises(ConfigError, match=r"speculation\.(model|drafter)"):
        partial(load_drafter, SpeculationConfig(drafter=name), MODEL, runner)(None, 16)


@pytest.mark.parametrize("name", NAMES)
def test_a_drafters_cache_is_promised_and_no_growth_of_requests(name, folder, tmp_path, monkeypatch):
    promises = []
    monkeypatch.setattr(engine_module, "MemoryLimit", lambda limit, promised: promises.append(promised))
    runner = load_runner(MODEL, folder, block_size=16)
    config, made = settings(name, folder, tmp_path), []

    def drafter(sampler) -> Drafter:
        made.append(load_drafter(config, MODEL, runner, sampler, 16))
        return made[0]

    Harness(runner, num_blocks=20)
    Harness(runner, drafter=drafter, num_blocks=20)
    own = 0 if name == "early_exit" else made[0].cache_bytes
    assert promises[1] - promises[0] == own
    assert (own > 0) == (name != "early_exit")
