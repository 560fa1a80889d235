"""Guided sequences: a sequence and its companion, admitted, computed, preempted and ended together."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.harness import EOS, VOCAB, Fickle, Harness, token_bytes_of
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Abort

pytestmark = pytest.mark.usefixtures("both_modes")

TOKEN_BYTES = token_bytes_of([chr(33 + i).encode() for i in range(VOCAB)], frozenset({EOS}))
PROMPTS = [[5, 6, 7, 8], list(range(20)), [9] * 40]
NEGATIVE = (1, 2, 3)


def logits(ids: list[int]) -> torch.Tensor:
    """Depends on the first token and on the last three."""
    rng = random.Random(repr((ids[0], ids[-3:])))
    return torch.tensor([rng.uniform(-3, 3) for _ in range(VOCAB)])


def world(**limits) -> Harness:
    return Harness(ScriptedRunner(VOCAB, logits, 512), token_bytes=TOKEN_BYTES, **limits)


def guided(prompt: list[int], negative: list[int], scale: float, count: int) -> list[int]:
    """Greedy decoding of two sequences by hand."""
    output: list[int] = []
    for _ in range(count):
        c, u = logits(prompt + output), logits(negative + output)
        output.append(int((u + scale * (c - u)).argmax()))
    return output


@pytest.mark.few(6)
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5, 4.0])
@pytest.mark.parametrize("budget", [3, 17, 64])
def test_it_is_the_two_pass_computation(scale, budget):
    harness = world(max_num_batched_tokens=budget)
    for place, prompt in enumerate(PROMPTS):
        harness.submit(
            f"r{place}", prompt, max_tokens=12, guidance_scale=scale, negative_prompt=NEGATIVE, ignore_eos=True
        )
        harness.submit(f"d{place}", prompt, max_tokens=12, guidance_scale=scale, ignore_eos=True)
    found = harness.run()
    for place, prompt in enumerate(PROMPTS):
        assert found[f"r{place}", 0, 0].tokens == guided(prompt, list(NEGATIVE), scale, 12)
        assert found[f"d{place}", 0, 0].tokens == guided(prompt, prompt[-1:], scale, 12)


def test_scale_1_is_no_guidance():
    texts = []
    for extra in ({}, {"guidance_scale": 1.0}):
        harness = world()
        for place, prompt in enumerate(PROMPTS):
            harness.submit(f"r{place}", prompt, max_tokens=20, temperature=0.8, seed=place, **extra)
        texts.append({name: story.tokens for name, story in harness.run().items()})
        assert harness.runner.steps < 30
    assert texts[0] == texts[1]


def stories(drafter=None, neighbours=True, **limits):
    """Guided and plain requests side by side."""
    harness = world(drafter=drafter and (lambda sampler: drafter), **limits)
    for place, prompt in enumerate(PROMPTS):
        harness.submit(
            f"g{place}",
            prompt,
            max_tokens=30,
            temperature=0.9,
            seed=place,
            guidance_scale=2.0,
            negative_prompt=NEGATIVE,
            logprobs=2,
            repetition_penalty=1.2,
            top_p=0.9,
            n=2 if place == 1 else 1,
        )
        if neighbours:
            harness.submit(f"p{place}", prompt, max_tokens=30, temperature=0.9, seed=place)
    found = harness.run()
    return {name: (s.tokens, s.logprobs, s.end.reason) for name, s in found.items()}, harness


def test_neighbours_slots_and_chunks_change_nothing():
    base, _ = stories(num_blocks=64)
    for limits in ({"max_num_batched_tokens": 5}, {"num_blocks": 14}, {"max_num_seqs": 4}, {"prefix_reuse": False}):
        found, harness = stories(**limits)
        assert found == base
        assert harness.engine.counters.preemptions or "num_blocks" not in limits
    alone, _ = stories(neighbours=False)
    assert alone.items() <= base.items()


def test_guesses_change_nothing():
    base, slow = stories()
    texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in base.items()]
    for accuracy in (1.0, 0.6):
        found, fast = stories(Fickle(texts, accuracy))
        assert found == base
        assert fast.engine.counters.accepted_tokens
        assert fast.runner.steps < slow.runner.steps
    assert slow.engine.counters.drafted_tokens == 0


@pytest.mark.disturbs
@pytest.mark.parametrize("steps", range(0, 9, 2))
@pytest.mark.parametrize("n", [1, 2])
def test_aborts_of_pairs_leave_nothing(steps, n):
    harness = world(max_num_batched_tokens=8)
    harness.submit("a", PROMPTS[1], max_tokens=30, guidance_scale=3.0, n=n, temperature=1.0)
    for _ in range(steps):
        harness.step()
    harness.engine.abort(Abort("a", 0))
    harness.run()
    assert harness.engine.stats().blocks_used == 0
    assert len(harness.engine.lifecycle.free_slots) == 8


@pytest.mark.parametrize(
    ("prompt", "params", "limits", "field"),
    [
        ([1] * 10, {"negative_prompt": (2,) * 512}, {}, "negative_prompt"),
        ([1] * 100, {"negative_prompt": (2,) * 100}, {"num_blocks": 13}, "negative_prompt"),
        ([1] * 10, {"n": 5}, {}, "guidance_scale"),
        ([1] * 10, {"negative_prompt": (VOCAB,)}, {}, "negative_prompt"),
    ],
)
def test_pairs_that_can_never_fit_are_refused(prompt, params, limits, field):
    harness = world(**limits)
    harness.submit("a", prompt, guidance_scale=2.0, **params)
    ends = [story.end for story in harness.run().values()]
    assert {end.param for end in ends} == {field}


@pytest.mark.parametrize(
    ("n", "limits", "words"),
    [
        (1, {"max_num_batched_tokens": 1}, "need max_num_batched_tokens to be at least 2, and it is 1 here"),
        (1, {"max_num_seqs": 1}, "need max_num_seqs to be at least 2, and it is 1 here"),
        (3, {"max_num_seqs": 4}, "need max_num_seqs to be at least 6, and it is 4 here"),
    ],
)
def test_the_setting_that_leaves_no_room_for_a_pair_is_named(n, limits, words):
    def end(**limits) -> Any:
        harness = world(**limits)
        harness.submit("a", [1] * 5, guidance_scale=2.0, n=n, max_tokens=2)
        return harness.run()["a", 0, 0].end

    assert words in end(**limits).message
    [(setting, _)] = limits.items()
    assert end(**{setting: int(words.split("at least ")[1].split(",")[0])}).reason == "length"


def test_the_context_ends_both():
    harness = world(num_blocks=16)  # 256 positions
    harness.submit("a", [1] * 20, guidance_scale=2.0, negative_prompt=(2,) * 60, ignore_eos=True)
    found = harness.run()["a", 0, 0]
    assert found.end.reason == "length"
    assert len(found.tokens) == (256 - 80 - 30) // 2


def test_a_pair_costs_two_tokens_a_step():
    steps = []
    for extra in ({}, {"guidance_scale": 2.0, "negative_prompt": NEGATIVE}):
        harness = world()
        harness.submit("a", PROMPTS[0], max_tokens=20, ignore_eos=True, **extra)
        harness.run()
        steps.append(harness.runner.steps)
    assert steps[0] == steps[1]
