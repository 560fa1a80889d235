"""Guessing ahead changes nothing but the number of steps: whoever guesses, whatever is asked, also where a sequence
ends or turns in the middle of what was guessed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from engine.harness import EOS, VOCAB, Fickle, Harness, token_bytes_of
from tailrace.drafting.adaptive import DraftLengthController
from tailrace.drafting.ngram import NGram
from tailrace.engine.speculation import Speculator
from tailrace.request.options import Speculation
from tailrace.runners.scripted import ScriptedRunner

CHARS = [chr(33 + i) for i in range(VOCAB)]
TOKEN_BYTES = token_bytes_of([c.encode() for c in CHARS], frozenset({EOS}))


def logits(ids: list[int]) -> torch.Tensor:
    """A few likely tokens, which depend on the last four."""
    rng = random.Random(repr(ids[-4:]))
    row = torch.full((VOCAB,), -4.0)
    for _ in range(8):
        row[rng.randrange(VOCAB)] = rng.uniform(0, 3)
    row[EOS] = 0.5
    return row


PROMPTS = [[5, 6, 7, 8, 5, 6, 7], list(range(20)), [9] * 5]
ASKED = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    "penalties": {"seed": 2, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "window": {"seed": 3, "repetition_penalty": 1.5, "penalty_last_n": 6},
    "min_p, bias": {"seed": 4, "min_p": 0.05, "logit_bias": {7: 2.0, 11: -3.0}},
    "min_tokens": {"seed": 5, "min_tokens": 12},
    "stop ids": {"seed": 6, "stop_token_ids": tuple(range(30, 50))},
    "stop strings": {"seed": 7, "stop": ("3", "Q", "ab"), "ignore_eos": True},
    "logprobs": {"seed": 8, "logprobs": 3, "report_entropy": True},
    "processed": {"seed": 9, "logprobs": 2, "logprobs_mode": "processed", "top_k": 5},
    "dry, no repeats": {"seed": 10, "dry_multiplier": 1.0, "no_repeat_ngram_size": 3},
    "mirostat": {"seed": 11, "mirostat": 2, "mirostat_tau": 3.0},
    "bad words": {"seed": 12, "bad_words": ((7, 8), (9,))},
    "banned strings": {"seed": 13, "banned_strings": ("'", "(5", "a"), "ignore_eos": True},
    "forced": {"seed": 14, "forced_token_ids": (40, 41, 42, 43, 44, 45)},
    "n": {"seed": 15, "n": 3},
    "loops": {"seed": 16, "temperature": 0.1, "ignore_eos": True},
}


def stories(drafter=None, **asked):
    """What three requests become; the number of steps; the drafter's engine."""
    world = Harness(
        ScriptedRunner(VOCAB, logits, 512),
        drafter=drafter and (lambda sampler: drafter),
        token_bytes=TOKEN_BYTES,
        num_blocks=48,
    )
    for place, prompt in enumerate(PROMPTS):
        world.submit(f"r{place}", prompt, **({"max_tokens": 40, "temperature": 1.0} | asked))
    found = world.run()
    return {
        name: (s.tokens, s.logprobs, s.end.reason, s.end.stop_token_id, s.end.cause) for name, s in found.items()
    }, world


@pytest.mark.few(3)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_exact_guesses_change_nothing(asked):
    plain, slow = stories(**asked)
    texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in plain.items()]
    for accuracy in (1.0, 0.7):
        drafter = Fickle(texts, accuracy)
        guessed, fast = stories(drafter, **asked)
        assert guessed == plain
        assert drafter.offered
        assert 0 < fast.engine.counters.accepted_tokens <= fast.engine.counters.drafted_tokens
        assert fast.runner.steps < slow.runner.steps
    guessed, _ = stories(NGram(), **asked)
    assert guessed == plain


@pytest.mark.few(3)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_the_budget_changes_nothing(asked, monkeypatch):
    """However many of the drafts are verified."""
    plain, _ = stories(**asked)
    texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in plain.items()]
    rng = random.Random(9)
    monkeypatch.setattr(
        DraftLengthController, "select", lambda self, offers: [rng.randint(0, offer.count) for offer in offers]
    )
    guessed, world = stories(Fickle(texts, 0.8), **asked)
    assert guessed == plain
    assert world.engine.counters.accepted_tokens
    guessed, _ = stories(NGram(), **asked)
    assert guessed == plain


class Unscored(Fickle):
    """A drafter of somebody else's that says with None that its drafts have no scores."""

    def draft(self, requests):
        return [replace(draft, scores=None) for draft in super().draft(requests)]


def test_drafts_without_scores_are_chosen_by_their_place_alone(monkeypatch):
    plain, _ = stories(seed=3, ignore_eos=True)
    texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in plain.items()]
    seen = []
    select = DraftLengthController.select
    monkeypatch.setattr(
        DraftLengthController, "select", lambda self, offers: (seen.extend(offers), select(self, offers))[1]
    )
    guessed, world = stories(Unscored(texts, 1.0), seed=3, ignore_eos=True)
    assert guessed == plain
    assert world.engine.counters.accepted_tokens
    assert seen
    assert all(len(offer.scores) == 0 for offer in seen)


def test_drafts_that_are_not_verified_hold_no_blocks(monkeypatch):
    monkeypatch.setattr(DraftLengthController, "select", lambda self, offers: [offer.count // 2 for offer in offers])
    plain, _ = stories(seed=3, ignore_eos=True)
    texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in plain.items()]
    given: list[tuple[int, int]] = []
    give_back = Speculator.give_back
    monkeypatch.setattr(
        Speculator,
        "give_back",
        lambda self, sequence, count: (given.append((sequence.slot, count)), give_back(self, sequence, count))[1],
    )
    guessed, world = stories(Fickle(texts, 1.0), seed=3, ignore_eos=True)
    assert guessed == plain
    assert len(given) >= world.engine.counters.drafted_tokens / 3


@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
def test_other_rules_say_something_of_the_right_length(rule):
    plain, _ = stories(temperature=0.0)
    guessed, world = stories(Fickle([], 1.0), temperature=0.0, speculation=Speculation(rule=rule))
    assert guessed == plain  # greedy: every rule accepts the likeliest token alone
    assert world.engine.counters.drafted_tokens


def test_the_time_of_verification_is_told_apart():
    """Which steps verify is known from what they forward; durations are counted, not judged."""
    for drafter in (None, Fickle([], 1.0)):
        rows: list[bool] = []
        world = Harness(ScriptedRunner(VOCAB, logits, 512), drafter=drafter and (lambda sampler, d=drafter: d))
        forward = world.runner.forward
        world.runner.forward = lambda batch, f=forward, rows=rows: rows.append(len(batch.wanted) > 1) or f(batch)
        world.submit("r", PROMPTS[0], max_tokens=20, temperature=0.0, ignore_eos=True)
        world.run()
        counters, stats = world.engine.counters, world.engine.stats()
        assert any(rows) == (drafter is not None)
        assert sum(counters.parts["sample"].counts) == rows.count(False)
        assert ("verify" in counters.parts) == any(rows)
        # the first step reads the prompt: it is none of those that decode
        assert stats.decode_steps.get("verify", 0) == rows.count(True)
        assert stats.decode_steps.get("plain", 0) == rows.count(False) - 1
        assert stats.decode_ms.keys() == stats.decode_steps.keys()
        assert all(total > 0 for total in stats.decode_ms.values())
        assert "observe" not in counters.parts


def test_a_drafter_that_watches_is_timed_apart():
    class Watching(Fickle):
        captures = (1,)

        def observe(self, seen):
            raise AssertionError("a scripted model has no layers")

    _, world = stories(Watching([], 1.0), temperature=0.0)
    assert sum(world.engine.counters.parts["observe"].counts) == world.engine.counters.steps


def test_a_request_may_do_without():
    _, world = stories(Fickle([], 1.0), speculation=Speculation(max_drafts=0), seed=1)
    assert world.engine.counters.drafted_tokens == 0


def test_guesses_never_outgrow_what_is_asked():
    for room in range(1, 8):
        plain, _ = stories(max_tokens=room, seed=4, ignore_eos=True)
        texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in plain.items()]
        guessed, _ = stories(Fickle(texts, 1.0), max_tokens=room, seed=4, ignore_eos=True)
        assert guessed == plain
        assert all(len(tokens) == room for tokens, *_ in guessed.values())


def test_a_drafter_that_fails_is_left_alone():
    class Broken(Fickle):
        def draft(self, asks):
            raise RuntimeError("no idea")

    plain, _ = stories(seed=1)
    guessed, world = stories(Broken([], 1.0), seed=1)
    assert guessed == plain
    assert world.engine.speculator.drafter is None


def test_a_drafter_that_fails_once_goes_on():
    class Moody(Fickle):
        calls = 0

        def draft(self, asks):
            self.calls += 1
            if self.calls % 3 == 0:
                raise RuntimeError("not now")
            return super().draft(asks)

    plain, _ = stories(seed=1)
    guessed, world = stories(Moody([], 1.0), seed=1)
    assert guessed == plain
    assert world.engine.speculator.drafter is not None


def test_guesses_that_never_come_hold_no_blocks():
    class Silent(Fickle):
        def guess(self, ask):
            return []

    def steps(drafter) -> int:
        world = Harness(
            ScriptedRunner(VOCAB, logits, 512, block_size=4),
            num_blocks=16,
            block_size=4,
            max_drafts=31,
            drafter=drafter and (lambda sampler: drafter),
        )
        world.submit("short", [1, 2, 3], max_tokens=60 - 30, ignore_eos=True)
        world.step()
        world.step()
        world.submit("long", list(range(20)), max_tokens=2, ignore_eos=True)
        while ("long", 0, 0) not in world.stories or world.stories["long", 0, 0].end is None:
            world.step()
        found = world.runner.steps
        world.run()
        return found

    assert steps(Silent([], 1.0)) == steps(None)


def test_a_sequence_that_backs_up_is_verified_exactly():
    asked = {"banned_strings": ("'", "(5", "a"), "ignore_eos": True, "seed": 3}
    plain, _ = stories(**asked)
    texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in plain.items()]
    for rule in ("rejection", "block"):
        guessed, _ = stories(Fickle(texts, 0.7), speculation=Speculation(rule=rule), **asked)
        assert guessed == plain  # noise that has decided once must not decide again, so another rule is not used


def test_forced_tokens_take_no_steps_of_their_own():
    asked = {"forced_token_ids": tuple(range(20, 32)), "temperature": 0.0, "max_tokens": 13, "ignore_eos": True}
    found, world = stories(None, **asked)
    assert all(tokens[:12] == list(range(20, 32)) for tokens, *_ in found.values())
    assert world.runner.steps < 13


def test_a_tight_cache_guesses_less_and_loses_nothing():
    plain, _ = stories(seed=3, ignore_eos=True)
    world = Harness(
        ScriptedRunner(VOCAB, logits, 512), drafter=lambda sampler: NGram(), num_blocks=7, token_bytes=TOKEN_BYTES
    )
    for place, prompt in enumerate(PROMPTS):
        world.submit(f"r{place}", prompt, max_tokens=40, temperature=1.0, seed=3, ignore_eos=True)
    assert {name: story.tokens for name, story in world.run().items()} == {name: s[0] for name, s in plain.items()}
    assert world.engine.counters.preemptions
