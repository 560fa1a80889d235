"""The sequential tests: the largest likelihood in a box is right, E is an e-value, the stated errors hold, and a wrong
test would be seen."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.optimize import minimize

from tailrace_conform.families import logistic, steps, weigh_families
from tailrace_conform.laws import all_laws
from tailrace_conform.sequential import (
    ALPHA,
    BETA,
    Cell,
    Evidence,
    add,
    box,
    combine,
    judge,
    largest_loglik,
    log_e,
    loglik,
    odds_shifted,
    remaining,
    shifts,
    tempered,
    weigh,
)

LAW = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)
LOOKS = 8  # draws between two looks
RUNS = 120  # simulated, for a share


def cell(counts: Sequence[int], law: Sequence[float] = LAW, tolerance: float = 0.0, size: float = 0.7) -> Cell:
    law = tuple(law)
    return Cell(tuple(counts), law, *box(law, tolerance), shifts(law, size))


# ---- the largest likelihood in a box


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_likelihood_is_that_of_an_optimiser(seed: int):
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.ones(5))
    counts = rng.multinomial(rng.integers(1, 60), rng.dirichlet(np.ones(5)))
    low, high = box(tuple(law), 0.3)
    found = largest_loglik(counts.tolist(), low, high)
    best = minimize(
        lambda p: -float(counts @ np.log(p)),
        law,
        bounds=list(zip(np.maximum(low, 1e-9), high, strict=True)),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found == pytest.approx(-best.fun, abs=1e-4)
    assert found >= loglik(counts.tolist(), law.tolist()) - 1e-9


def test_one_category_gets_all_that_the_others_leave():
    low, high = (0.1, 0.2, 0.0), (0.9, 0.9, 0.3)
    assert largest_loglik([5, 0, 0], low, high) == pytest.approx(5 * math.log(0.8))


def test_what_is_impossible_has_no_likelihood():
    made = weigh(Cell((1, 1), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0), {"other": (0.5, 0.5)}))
    assert log_e(made) == math.inf
    assert judge(made, 1e-9) == "broken"


def test_a_box_without_a_distribution_is_an_error():
    with pytest.raises(ValueError, match="no distribution"):
        largest_loglik([1, 1], (0.7, 0.7), (0.9, 0.9))


# ---- E is an e-value: its mean under the law is at most 1, exactly, over all outcomes


def mean_of_e(make: Callable[[Sequence[int]], Evidence], law: Sequence[float], draws: int) -> float:
    total = 0.0
    for outcome in itertools.product(range(len(law)), repeat=draws):
        counts = Counter(outcome)
        vector = [counts[at] for at in range(len(law))]
        total += math.exp(log_e(make(vector)) + sum(math.log(law[at]) for at in outcome))
    return total


@pytest.mark.parametrize("draws", [1, 2, 5])
@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_the_mean_of_e_is_at_most_one(draws: int, tolerance: float):
    law = (0.5, 0.3, 0.2)
    mean = mean_of_e(lambda counts: weigh(cell(counts, law, tolerance)), law, draws)
    assert mean <= 1 + 1e-9
    assert tolerance or mean == pytest.approx(1.0)  # of a law without slack nothing is given away


def test_the_mean_of_e_is_at_most_one_wherever_in_the_box_the_truth_is():
    law = (0.5, 0.3, 0.2)
    for truth in (odds_shifted(law, (True, False, False), 0.09), odds_shifted(law, (False, False, True), 0.09)):
        low, high = box(law, 0.1)
        assert all(a <= p <= b for a, p, b in zip(low, truth, high, strict=True))
        assert mean_of_e(lambda counts: weigh(cell(counts, law, 0.1)), truth, 5) <= 1 + 1e-9


def test_the_mean_of_e_of_a_family_is_at_most_one_for_each_member():
    grid = steps(-3.0, 3.0, 0.25)
    stated = {"half": lambda at: (logistic(at + 0.5),)}
    for unknown in (-1.0, 0.5):

        def evidence(counts: Sequence[int]) -> Evidence:
            return weigh_families([counts], lambda at: (logistic(at + 1.0),), stated, grid, lambda at: (0.05,))

        assert mean_of_e(evidence, logistic(unknown + 1.0), 6) <= 1 + 1e-9


# ---- the stated errors, by simulation


def run(truth: Sequence[float], make: Callable[[Sequence[int]], Evidence], rng: random.Random, alpha: float) -> str:
    """A test that looks after every few draws, up to 400."""
    counts = [0] * len(truth)
    for _ in range(400 // LOOKS):
        for at in rng.choices(range(len(truth)), truth, k=LOOKS):
            counts[at] += 1
        if (finding := judge(make(counts), alpha)) != "open":
            return finding
    return "open"


def share(finding: str, truth: Sequence[float], make: Callable[[Sequence[int]], Evidence], alpha: float) -> float:
    rng = random.Random(1)
    return sum(run(truth, make, rng, alpha) == finding for _ in range(RUNS)) / RUNS


def test_false_broken_is_no_more_frequent_than_alpha_however_often_one_looks():
    found = share("broken", LAW, lambda counts: never_holds(weigh(cell(counts))), 0.1)
    assert found <= 0.1 + 3 * math.sqrt(0.09 / RUNS)


def never_holds(evidence: Evidence) -> Evidence:
    """So that a run only ends by "broken": the most looks."""
    return Evidence(evidence.law, {**evidence.stated, "the law": evidence.law}, evidence.others)


def test_looking_often_with_a_fixed_size_test_would_be_seen():
    """The same looks with a chi-square at 10%: it says "broken" far too often. This is what the simulation can see."""
    from scipy.stats import chi2

    bound, law = chi2.isf(0.1, len(LAW) - 1), np.array(LAW)
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        counts = np.zeros(len(LAW))
        for _ in range(50):
            counts += rng.multinomial(LOOKS, LAW)
            if (np.square(counts - counts.sum() * law) / (counts.sum() * law)).sum() > bound:
                wrong += 1
                break
    assert wrong / 200 > 0.25


@pytest.mark.long
def test_false_holds_is_no_more_frequent_than_beta():
    for truth in shifts(LAW, 0.7).values():
        rng = random.Random(2)
        assert sum(run(truth, lambda counts: weigh(cell(counts)), rng, 1e-7) == "holds" for _ in range(40)) <= 1


@pytest.mark.parametrize(
    "truth",
    [tempered(LAW, 1.8), tempered(LAW, 0.5), (0.25, 0.4, 0.15, 0.1, 0.06, 0.04)],
    ids=["cold", "hot", "swapped"],
)
def test_power(truth: Sequence[float]):
    """Deviations as large as known faults are found with the alpha of a law, within the draws of a normal budget."""
    rng = random.Random(3)
    make = lambda counts: weigh(cell(counts, size=2.0))  # noqa: E731
    found = [run_long(truth, make, rng) for _ in range(20)]
    assert found.count("broken") >= 19


def run_long(truth: Sequence[float], make: Callable[[Sequence[int]], Evidence], rng: random.Random) -> str:
    counts = [0] * len(truth)
    for _ in range(32):
        for at in rng.choices(range(len(truth)), truth, k=64):
            counts[at] += 1
        if log_e(make(counts)) >= -math.log(ALPHA / 20):
            return "broken"
    return "open"


def test_the_law_is_said_to_hold_within_a_quick_budget():
    rng = random.Random(4)
    make = lambda counts: weigh(cell(counts, size=1.1))  # noqa: E731
    found = [run(LAW, make, rng, 1e-7) for _ in range(50)]
    assert found.count("holds") >= 45
    assert "broken" not in found


# ---- evidence adds up


def test_cells_add_up_like_the_draws_of_one():
    one, other = (3, 1, 0, 2, 0, 1), (1, 2, 2, 0, 1, 0)
    both = combine([cell(one), cell(other)])
    together = weigh(cell([a + b for a, b in zip(one, other, strict=True)]))
    assert both.law.mixed == pytest.approx(together.law.mixed)
    for name, score in together.stated.items():
        assert both.stated[name].mixed == pytest.approx(score.mixed)


def test_a_deviation_that_a_cell_does_not_have_counts_as_the_law():
    first = weigh(Cell((2, 1), (0.5, 0.5), (0.5, 0.5), (0.5, 0.5), {"one": (0.9, 0.1)}))
    second = weigh(Cell((1, 1), (0.3, 0.7), (0.3, 0.7), (0.3, 0.7), {"other": (0.7, 0.3)}))
    both = add(first, second)
    assert both.stated["one"].mixed == pytest.approx(first.stated["one"].mixed + second.law.mixed)
    assert both.stated["other"].mixed == pytest.approx(first.law.mixed + second.stated["other"].mixed)
    assert set(remaining(both, BETA)) == {"one", "other"}


# ---- the run's error


def test_the_shares_of_all_laws_are_at_most_alpha():
    rates = [law.error_rate for law in all_laws()]
    assert sum(rates) <= ALPHA + 1e-18
    assert sum(rate > 0 for rate in rates) >= 10
