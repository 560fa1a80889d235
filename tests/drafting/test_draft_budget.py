"""Which drafts of a step are verified, and how scores become probabilities: on given times, with no clock."""

from __future__ import annotations

import itertools
import random
from itertools import accumulate, pairwise
from operator import mul

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.drafting import adaptive
from tailrace.drafting.acceptance import Acceptance, Calibration
from tailrace.drafting.adaptive import PROBE, DraftLengthController
from tailrace.drafting.draft_budget import DraftCosts, find_convex_costs, maximize_rate, select_drafts
from tailrace.drafting.draft_history import Offer

CHANCES = st.lists(st.lists(st.floats(0.01, 1.0), max_size=4), min_size=1, max_size=4)


def survive(chances: list[float]) -> list[float]:
    return list(accumulate(chances, mul))


def rate_of(counts, survival, tokens, seconds, step_s) -> float:
    gained = sum(sum(row[:count]) for row, count in zip(survival, counts, strict=True))
    return (tokens + gained) / (seconds + step_s[sum(counts)] - step_s[0])


@settings(max_examples=examples(80), deadline=None)
@given(CHANCES, st.floats(0.0, 0.6), st.floats(0.0, 0.2))
def test_the_best_step_is_found_where_positions_cost_more_and_more(chances, slope, bend):
    survival = [survive(row) for row in chances]
    total = sum(map(len, survival))
    step_s = [1.0 + slope * n + bend * max(0, n - 2) for n in range(total + 1)]
    tokens, seconds = float(len(survival)), 1.3
    found = select_drafts(survival, tokens, seconds, step_s)
    every = itertools.product(*(range(len(row) + 1) for row in survival))
    best = max(rate_of(counts, survival, tokens, seconds, step_s) for counts in every)
    assert rate_of(found, survival, tokens, seconds, step_s) == pytest.approx(best, rel=1e-9)


@settings(max_examples=examples(80), deadline=None)
@given(CHANCES, st.data())
def test_a_draft_does_not_depend_on_those_behind_it(chances, data):
    """Or on its own token, of which scores know nothing: so the law of verification holds."""
    step_s = [1.0 + 0.4 * n + 0.1 * (n > 3) for n in range(17)]
    place = data.draw(st.integers(0, len(chances) - 1))
    at = data.draw(st.integers(0, len(chances[place])))
    changed = [list(row) for row in chances]
    changed[place][at:] = data.draw(st.lists(st.floats(0.01, 1.0), max_size=4 - at))
    before, after = (select_drafts([survive(r) for r in of], len(of), 1.0, step_s) for of in (chances, changed))
    assert min(before[place], at) == min(after[place], at)
    assert (before[place] >= at) == (after[place] >= at)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=12))
def test_convex_costs_lie_below_the_curve_and_meet_its_ends(rises):
    curve = list(accumulate(rises, initial=1.0))
    costs = find_convex_costs(curve)
    assert all(b >= a - 1e-9 for a, b in pairwise(costs))
    below = list(accumulate(costs, initial=1.0))
    assert all(low <= high + 1e-9 for low, high in zip(below, curve, strict=True))
    assert below[-1] == pytest.approx(curve[-1])


def test_positions_go_to_the_drafts_that_most_likely_survive():
    survival = [survive([0.9] * 4), survive([0.3] * 4), survive([0.6, 0.95, 0.95])]
    steep = [1.0 + 0.35 * n for n in range(12)]
    assert select_drafts(survival, 3.0, 1.0, steep) == [0, 0, 0]  # 0.9 tokens for a third of a step of three
    flat = [1.0 + 0.14 * n for n in range(12)]
    assert select_drafts(survival, 3.0, 1.0, flat) == [4, 0, 2]


def test_scores_become_shares():
    calibration, rng = Calibration(), random.Random(4)
    assert calibration.estimate(0.9) == 0.9
    for _ in range(4000):
        score = rng.random()
        calibration.add(score, rng.random() < score**3)  # it is surer than it should be
    for score in (0.1, 0.4, 0.7, 0.95):
        assert calibration.estimate(score) == pytest.approx(score**3, abs=0.12)


def test_a_score_that_is_no_number_does_no_harm():
    calibration = Calibration()
    for score in (float("nan"), float("inf"), -1.0, 2.0):
        calibration.add(score, accepted=True)
        assert 0.0 <= calibration.estimate(score) <= 1.0


def test_drafts_that_were_not_verified_count_with_their_probability():
    rates = Acceptance(memory=100.0)
    rates.add(0, 0)
    rates.add(2, 2)
    rates.add_expected(2, 0.5)
    rates.add_expected(0, 0.25)
    assert (rates.first.above, rates.later.above) == pytest.approx((0.99 + 0.25, 0.99 + 0.5))
    assert rates.first.value == pytest.approx(1.24 / 1.99)


# ---- the controller, on a simulated machine

MOST = 8


def step_s(tokens: int) -> float:
    return 0.010 * max(1.0, tokens / 32) + 2e-5 * tokens


class Simulation:
    """Sequences whose positions are easy or hard. scored: the controller knows. wrong: what scores are worth nothing
    for. noise: of the clock."""

    def __init__(self, streams: int, *, scored: bool, rates=(0.9, 0.5), noise: float = 0.0, seed: int = 0) -> None:
        self.controller = DraftLengthController(MOST)
        self.streams, self.scored, self.rates, self.noise = streams, scored, rates, noise
        self.rng = random.Random(seed)
        self.useless = False

    def step(self) -> tuple[int, float]:
        """Tokens and seconds."""
        rng, control = self.rng, self.controller
        counts = control.counts([(slot, MOST) for slot in range(self.streams)], 0)
        ease = [[self.draw_ease(slot) for _ in range(count)] for slot, count in enumerate(counts)]
        offers = [
            Offer(slot, count, [rng.random() if self.useless else e**0.5 for e in row] if self.scored else ())
            for slot, (count, row) in enumerate(zip(counts, ease, strict=True))
        ]
        kept = control.select([offer for offer in offers if offer.count])
        kept = [kept.pop(0) if offer.count else 0 for offer in offers]
        control.record_drafting(sum(counts), 1e-5 * sum(counts))
        seconds = step_s(self.streams + sum(kept))
        accepted = 0
        for slot, (count, row) in enumerate(zip(kept, ease, strict=True)):
            right = next((n for n, e in enumerate(row[:count]) if rng.random() >= e), count)
            accepted += right
            if counts[slot]:
                control.record_acceptance(slot, count, right)
        control.record_step(self.streams + sum(kept), seconds * max(0.5, rng.gauss(1.0, self.noise)))
        return self.streams + accepted, seconds + 1e-5 * sum(counts)

    def draw_ease(self, slot: int) -> float:
        rate = self.rates[slot % len(self.rates)]
        return self.rng.betavariate(rate, 1.0 - rate)

    def rate(self, steps: int = 500) -> float:
        tokens, seconds = map(sum, zip(*(self.step() for _ in range(steps)), strict=True))
        return tokens / seconds


@pytest.mark.few(1)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_scores_make_steps_faster_where_positions_cost_time(noise):
    with_scores, without = (Simulation(8, scored=scored, noise=noise).rate() for scored in (True, False))
    assert with_scores > 1.08 * without


def test_scores_add_nothing_where_a_step_is_full_without_drafts():
    assert Simulation(32, scored=True).rate(200) > 0.97 * 32 / step_s(32)


@pytest.mark.few(1)
@pytest.mark.parametrize("streams", [1, 8, 32])
def test_scores_that_say_nothing_cost_little(streams):
    useless = Simulation(streams, scored=True)
    useless.useless = True
    assert useless.rate() > 0.95 * Simulation(streams, scored=False).rate()


def test_wrong_drafts_with_the_best_scores_cost_three_percent_at_most():
    for streams in (1, 16):
        never = Simulation(streams, scored=True, rates=(1e-6,))
        never.draw_ease = lambda slot: 0.0  # type: ignore[method-assign]
        never.useless = True
        assert never.rate() > 0.97 * streams / step_s(streams)


def test_drafts_that_are_never_selected_are_probed(monkeypatch):
    """Or it would never be seen that drafts with such scores are right."""
    simulation = Simulation(4, scored=True, rates=(0.95,))
    simulation.rate(200)
    monkeypatch.setattr(DraftLengthController, "_add_probes", lambda *_: None)  # of sequences that are asked for none
    control, verified = simulation.controller, []
    for _ in range(100):
        counts = control.counts([(slot, MOST) for slot in range(4)], 0)
        kept = control.select([Offer(slot, count, [1e-3] * count) for slot, count in enumerate(counts) if count])
        verified.append(max(kept, default=0))
        for slot, count in zip([slot for slot in range(4) if counts[slot]], kept, strict=True):
            control.record_acceptance(slot, count, count)
        control.record_drafting(sum(counts), 0.0)
        control.record_step(4 + sum(kept), step_s(4 + sum(kept)))
    assert PROBE in verified[:40]
    assert verified[-1] > PROBE


def test_without_scores_or_without_adaptation_all_are_verified():
    offers = [Offer(0, 4), Offer(1, 2, (0.9,)), Offer(2, 0)]  # a score is missing
    simulation = Simulation(3, scored=False)
    simulation.rate(100)
    simulation.controller.counts([(slot, MOST) for slot in range(3)], 0)
    assert simulation.controller.select(offers) == [4, 2, 0]
    constant = DraftLengthController(MOST, adaptive=False)
    constant.counts([(0, MOST)], 0)
    assert constant.select([Offer(0, 3, (0.01, 0.01, 0.01))]) == [3]


def test_the_curve_of_costs_is_that_of_the_drafts_that_were_made(monkeypatch):
    """Beyond a cliff the positions that were asked for may be cheap. Where fewer drafts were made they say nothing."""
    seen = []
    monkeypatch.setattr(adaptive, "select_drafts", lambda *args: seen.append(args[3]) or select_drafts(*args))
    simulation = Simulation(4, scored=True)
    simulation.rate(200)
    control = simulation.controller
    asked = control.counts([(slot, MOST) for slot in range(4)], 0)
    assert sum(asked) > 8
    control.select([Offer(slot, 1, (0.9,)) for slot in range(4)])
    control.select([Offer(slot, 1, (0.9,), places=asked[slot]) for slot in range(4)])  # drawn from distributions
    control.select([*(Offer(slot, 1, (0.9,)) for slot in range(3)), Offer(3, 2)])
    assert [len(curve) - 1 for curve in seen[-3:]] == [4, sum(max(1, count) for count in asked), 3]


def test_the_best_number_is_found_on_any_curve():
    """Against every prefix of the drafts by their gain, on a curve with cliffs."""
    rng = random.Random(8)
    for _ in range(60):
        n, kept = rng.randint(1, 5), rng.choice((1.0, 0.7))
        rates = [(rng.random(), rng.random()) for _ in range(n)]
        most = [rng.randint(0, 4) for _ in range(n)]
        ready = [rng.choice((1.0, 0.5)) for _ in range(n)]
        if not any(most):
            continue
        curve = [*accumulate((rng.choice((0.0, 0.01, 0.3)) for _ in range(rng.randint(2, 24))), initial=1.0)]
        costs = DraftCosts(curve, 0.2, 0.01, 0.005, 0.02, kept)
        found = maximize_rate(rates, most, ready, costs)
        drafts = [(-p * q**at, place) for place, (p, q) in enumerate(rates) for at in range(most[place])]
        best, wanted = n / (curve[0] + 0.2), [0] * n
        tokens, number, counts = float(n), 0.0, [0] * n
        for gain, place in sorted(drafts):
            tokens, number = tokens - gain * ready[place], number + ready[place]
            counts[place] += 1
            if number * kept >= len(curve) - 1:
                break
            asked = sum(count > 0 for count in counts)
            seconds = np.interp(number * kept, range(len(curve)), curve) + 0.2 + 0.01 * asked + 0.005 * number + 0.02
            if tokens / seconds > best + 1e-12:
                best, wanted = tokens / seconds, [*counts]
        assert found == wanted


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_no_more_are_verified_than_were_made(data):
    simulation = Simulation(3, scored=True, seed=data.draw(st.integers(0, 9)))
    simulation.rate(data.draw(st.integers(1, 60)))
    control = simulation.controller
    counts = control.counts([(slot, MOST) for slot in range(3)], data.draw(st.integers(0, 300)))
    made = [data.draw(st.integers(0, count)) for count in counts]
    scores = [data.draw(st.lists(st.floats(0, 1), min_size=m, max_size=m)) for m in made]
    kept = control.select([Offer(slot, m, s) for slot, (m, s) in enumerate(zip(made, scores, strict=True))])
    assert all(0 <= k <= m for k, m in zip(kept, made, strict=True))
