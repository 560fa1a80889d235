"""The number of drafts on machines whose step times are given, with texts whose acceptance is given: no clock is looked
at.

A simulated run is compared with runs of always the same number, on the same machine and texts, by tokens per second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.drafting.adaptive import PROBE, DraftLengthController
from tailrace.drafting.step_time import DraftTime, StepTime
from tailrace.errors import ConfigError

Rates = Callable[[int, int], tuple[float, float]]  # slot, step → the share of first and of later drafts that stand

MACHINES: dict[str, Callable[[int], float]] = {
    "flat": lambda n: 0.005 * (1 + 0.002 * n),  # a GPU with a small batch
    "cpu": lambda n: 0.020 * (1 + 0.12 * (n - 1)),
    "steep": lambda n: 0.020 * (0.1 + 0.9 * n),  # every token costs nearly what a step does
    "knee": lambda n: 0.010 * max(1.0, n / 32),  # memory-bound, then compute-bound
    "stairs": lambda n: 0.010 * (1 + 0.25 * ((n - 1) // 8)),  # whole tiles
}
TEXTS: dict[str, Rates] = {
    "never": lambda slot, step: (0.0, 0.0),
    "free": lambda slot, step: (0.15, 0.4),
    "half": lambda slot, step: (0.5, 0.5),
    "copy": lambda slot, step: (0.9, 0.9),
    "changing": lambda slot, step: (0.9, 0.95) if step // 150 % 2 else (0.05, 0.3),
    "mixed": lambda slot, step: (0.9, 0.9) if slot % 2 else (0.05, 0.3),
}
MOST = 8
STEPS = 500


def run(
    machine: str,
    text: str,
    streams: int,
    constant: int | None = None,
    *,
    ready: float = 1.0,
    noise: float = 0.0,
    steps: int = STEPS,
    seed: int = 0,
    lives: int | None = None,
    controller: DraftLengthController | None = None,
    held: float = 0.0,
) -> float:
    """Tokens per second. ready: how often the drafter has something. noise: of the clock, as a share; then one step in
    fifty also seems to take five times as long. lives: all sequences are replaced after so many steps. held: steps
    overlap, and one that somebody is asked for guesses in, or was in the one before, begins so much later, as a share
    of a plain one's time; of the others the time is told one step late. The drafter takes 10 µs per sequence."""
    rng, rates, seconds = random.Random(seed), TEXTS[text], MACHINES[machine]
    controller = controller or DraftLengthController(MOST)
    total_s, tokens = 0.0, 0
    asked, late = False, []
    for step in range(steps):
        if lives and step % lives == 0:
            for slot in range(streams):
                controller.remove(slot)
        asks = [(slot, MOST) for slot in range(streams)]
        counts = controller.counts(asks, 0) if constant is None else [constant] * streams
        offered = [count if count and rng.random() < ready else 0 for count in counts]
        for earlier in late:
            controller.record_step(*earlier)
        guess_s = 1e-5 * sum(count > 0 for count in counts)
        controller.record_drafting(sum(offered), guess_s)
        if held and (asked or any(counts)):
            controller.record_delay(held * seconds(streams))
            total_s += held * seconds(streams)
        asked = any(offered)
        step_s = seconds(streams + sum(offered))
        for slot, (count, has) in enumerate(zip(counts, offered, strict=True)):
            first, later = rates(slot, step)
            accepted = 0
            while accepted < has and rng.random() < (later if accepted else first):
                accepted += 1
            tokens += accepted + 1
            if count:
                controller.record_acceptance(slot, has, accepted)
        seen_s = step_s * max(0.5, rng.gauss(1.0, noise)) * (5.0 if noise and rng.random() < 0.02 else 1.0)
        late = [(streams + sum(offered), seen_s, controller.step)]
        if not held or asked:
            controller.record_step(*late.pop())
        total_s += step_s + guess_s
    return tokens / total_s


def constants(machine: str, text: str, streams: int, **options) -> dict[int, float]:
    """Tokens per second of always the same number."""
    return {constant: run(machine, text, streams, constant, **options) for constant in (0, 1, 2, 4, 8)}


def best_constant(machine: str, text: str, streams: int, **options) -> float:
    return max(constants(machine, text, streams, **options).values())


@pytest.mark.few(2)
@pytest.mark.parametrize("streams", [1, 4, 16, 64])
@pytest.mark.parametrize("machine", MACHINES)
def test_what_never_stands_costs_three_percent_at_most(machine, streams):
    assert run(machine, "never", streams) >= 0.97 * run(machine, "never", streams, 0)


@pytest.mark.few(2)
@pytest.mark.parametrize("ready", [1.0, 0.35])
@pytest.mark.parametrize("machine", MACHINES)
def test_free_text_loses_three_percent_at_most(machine, ready):
    for streams in (1, 16):
        assert run(machine, "free", streams, ready=ready) >= 0.97 * run(machine, "free", streams, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("machine", "text", "streams"),
    [
        ("flat", "copy", 1),
        ("flat", "copy", 16),
        ("flat", "half", 1),
        ("flat", "half", 4),
        ("cpu", "copy", 1),
        ("cpu", "copy", 4),
        ("cpu", "half", 1),
        ("cpu", "copy", 64),
        ("knee", "copy", 4),
        ("knee", "copy", 64),
        ("steep", "copy", 1),
        ("steep", "copy", 16),
        ("stairs", "copy", 1),
        ("stairs", "half", 4),
    ],
)
def test_near_the_best_constant_number(machine, text, streams):
    assert run(machine, text, streams) >= 0.94 * best_constant(machine, text, streams)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("machine", "text", "streams"),
    [
        ("cpu", "changing", 1),
        ("cpu", "changing", 4),
        ("cpu", "mixed", 4),
        ("knee", "mixed", 16),
        ("stairs", "mixed", 16),
    ],
)
def test_better_than_any_constant_number_where_texts_differ_or_change(machine, text, streams):
    assert run(machine, text, streams) >= 1.05 * best_constant(machine, text, streams)


@pytest.mark.few(1)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_noisy_clock(machine):
    for text, streams in (("never", 1), ("never", 16), ("copy", 1)):
        best = best_constant(machine, text, streams)
        assert run(machine, text, streams, noise=0.1) >= 0.9 * best, (text, streams)
        assert run(machine, text, streams, noise=0.1) >= 0.97 * run(machine, text, streams, 0), (text, streams)


def test_new_sequences_begin_with_what_the_others_have_shown():
    for text in ("never", "copy"):
        assert run("cpu", text, 4, lives=25) >= 0.94 * best_constant("cpu", text, 4)


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("ready", [1.0, 0.4])
@pytest.mark.parametrize("machine", MACHINES)
def test_every_combination(machine, ready, noise):
    for text in TEXTS:
        for streams in (1, 4, 16, 64):
            for seed in range(2):
                options = {"ready": ready, "noise": noise, "seed": seed, "steps": 1000}
                mine = run(machine, text, streams, **options)
                found = constants(machine, text, streams, **options)
                assert mine >= 0.95 * found[0], (text, streams, seed)
                assert mine >= 0.82 * max(found.values()), (text, streams, seed)


def warmed(machine: str = "cpu", text: str = "never", streams: int = 1, steps: int = 300) -> DraftLengthController:
    controller = DraftLengthController(MOST)
    run(machine, text, streams, steps=steps, controller=controller)
    return controller


def test_recovery_is_quick_when_a_text_turns_to_copying():
    controller = warmed()
    steps = 0
    for _ in range(200):
        (count,) = controller.counts([(0, MOST)], 0)
        controller.record_step(1 + count, MACHINES["cpu"](1 + count))
        if count:
            controller.record_acceptance(0, count, count)
        steps += 1
        if count >= 6:
            break
    assert steps <= 60


def test_a_probe_that_finds_nothing_to_guess_stays_due():
    controller = warmed()
    waited = next(n for n in range(200) if controller.counts([(0, MOST)], 0) != [0])
    assert waited < 100
    for _ in range(20):
        controller.record_drafting(0, 1e-5)
        controller.record_acceptance(0, 0, 0)
        controller.record_step(1, MACHINES["cpu"](1))
        assert controller.counts([(0, MOST)], 0) == [PROBE]


def test_one_stream_is_given_more_than_each_of_many():
    def each(streams: int) -> float:
        controller = warmed("knee", "copy", streams)
        return (
            sum(
                max(sum(controller.counts([(slot, MOST) for slot in range(streams)], 0)) for _ in range(3)) for _ in "a"
            )
            / streams
        )

    assert each(1) > 6 > each(16) > each(64)


def test_prefills_in_a_step_pay_for_nothing():
    """A draft delays the prefill as well: in a step that takes long anyway, no more is drafted than alone."""
    alone, mixed = warmed("cpu", "half", 4), warmed("cpu", "half", 4)
    asks = [(slot, MOST) for slot in range(4)]
    assert sum(mixed.counts(asks, 500)) <= sum(alone.counts(asks, 0)) + PROBE


@pytest.mark.few(4)
@pytest.mark.parametrize("streams", [1, 16])
@pytest.mark.parametrize("text", ["never", "mixed", "copy"])
@pytest.mark.parametrize("held", [0.1, 0.5])
def test_who_holds_up_steps_that_overlap_pays_for_it(held, text, streams):
    """Nothing is lost where guesses do not make up for it, and where they do they are made."""
    plain, found = run("flat", text, streams, 0), run("flat", text, streams, held=held)
    assert found >= 0.96 * plain
    assert text != "copy" or found > 1.5 * plain


def test_that_it_is_paid_for_can_be_seen(monkeypatch):
    monkeypatch.setattr(DraftLengthController, "record_delay", lambda self, seconds: None)
    assert run("flat", "never", 16, held=0.5) < 0.96 * run("flat", "never", 16, 0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=10), st.integers(0, 600), st.integers(0, 5))
def test_nobody_gets_more_than_it_can_have(asks, others, warm):
    asks = list(dict(asks).items())
    controller = DraftLengthController(MOST)
    for _ in range(warm):
        controller.counts(asks, 0)
        controller.record_step(max(1, len(asks)), 0.01)
    counts = controller.counts(asks, others)
    assert len(counts) == len(asks)
    assert all(0 <= count <= min(limit, MOST) for count, (_, limit) in zip(counts, asks, strict=True))


def test_the_same_inputs_give_the_same_counts():
    def story() -> list[list[int]]:
        controller, rng, out = DraftLengthController(MOST), random.Random(3), []
        for _ in range(200):
            counts = controller.counts([(slot, MOST) for slot in range(5)], 0)
            controller.record_drafting(sum(counts), 1e-5)
            for slot, count in enumerate(counts):
                controller.record_acceptance(slot, count, rng.randint(0, count))
            controller.record_step(5 + sum(counts), 0.01 + 1e-4 * sum(counts))
            out.append(counts)
        return out

    assert story() == story()


def test_unless_adaptive_each_gets_all_it_can_have():
    controller = DraftLengthController(6, adaptive=False)
    for _ in range(5):
        assert controller.counts([(0, 3), (1, 9), (4, 0)], 100) == [3, 6, 0]
        controller.record_drafting(9, 0.5)
        controller.record_step(12, 3.0)
        controller.record_acceptance(0, 3, 0)


def test_a_new_owner_of_a_slot_is_not_blamed():
    controller = DraftLengthController(MOST)
    run("cpu", "mixed", 2, controller=controller, steps=400)  # slot 0 never copies, slot 1 always does
    controller.remove(0)
    counts = controller.counts([(0, MOST), (1, MOST)], 0)
    assert counts[0] >= 1


@pytest.mark.parametrize("most", [-1, 33])
def test_out_of_range(most):
    with pytest.raises(ConfigError, match="max_drafts"):
        DraftLengthController(most)


def test_step_times_between_and_beyond_what_was_measured():
    times = StepTime()
    for _ in range(10):
        times.add(1, 0.010, plain=True)
        times.add(5, 0.020, plain=False)
        times.add(3, 0.015, plain=False)
    assert times.estimate_steps(1, 6) == pytest.approx([0.010, 0.0125, 0.015, 0.0175, 0.020, 0.0225, 0.025])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.floats(1e-4, 1.0), st.booleans()), min_size=1, max_size=60))
def test_step_times_never_fall(steps):
    times = StepTime()
    for tokens, seconds, plain in steps:
        assert times.add(tokens, seconds, plain) > 0.0
    curve = times.estimate_steps(1, 400)
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(curve))
    assert curve[0] > 0.0


def test_what_slows_every_step_moves_sizes_that_do_not_come_any_more():
    times = StepTime()
    for _ in range(20):
        times.add(1, 0.010, plain=True)
        times.add(5, 0.020, plain=False)
    for _ in range(60):
        times.add(5, 0.040, plain=False)
    assert 0.016 < times.estimate_steps(1, 0)[0] < 0.021


def test_one_slow_step_is_not_believed():
    times = StepTime()
    for n in range(10):
        times.add(1, 1.0 if n == 4 else 0.010, plain=True)
    assert times.estimate_steps(1, 0)[0] == pytest.approx(0.010, rel=0.1)


def test_what_guessing_costs_is_told_apart():
    for per_ask, per_draft in ((2e-5, 0.0), (0.0, 1e-3), (5e-4, 2e-4)):
        rng, guess = random.Random(1), DraftTime()
        for _ in range(300):
            asked = rng.randint(1, 16)
            drafts = asked * rng.randint(1, 8)
            guess.add(asked, drafts, per_ask * asked + per_draft * drafts)
        assert guess.costs == pytest.approx((per_ask, per_draft), rel=0.05, abs=5e-5)
