"""The law of the draws, by counts: chi-square against the oracle, at a stated level, on fixed seeds; and that it sees planted faults.

alpha = 1e-6 per test (the quantile is exact, from scipy), 2^17 draws: a shift of total variation 0.01 is found with certainty.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from oracles import brute
from tailrace import kernels
from tailrace.params import SamplingParams
from tailrace.sampling import Slots
from tailrace.sampling.sampler import distribution

ALPHA = 1e-6
V = 40
LOGITS = [1.5 * math.sin(i * 1.7) + (2.0 if i % 7 == 0 else 0.0) for i in range(V)]
PARAMS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 2.5},
    "min-p": {"min_p": 0.1},
    "top-k": {"top_k": 9},
    "top-p": {"top_p": 0.8},
    "all": {
        "temperature": 0.9,
        "min_p": 0.02,
        "top_k": 20,
        "top_p": 0.95,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.2,
    },
}


def expected(fields: dict, prompt: list[int], output: list[int]) -> dict[int, float]:
    return brute.distribution(LOGITS, brute.Ask(**fields), prompt, output)


def counts(
    ids: torch.Tensor, logits: torch.Tensor, draws: int, key: int = 77, same_position: bool = False
) -> torch.Tensor:
    """How often each id wins over so many positions, with the noise the sampler uses."""
    found = torch.zeros(V)
    for position in range(draws):
        at = 5 if same_position and position % 2 else position
        winner = (logits + kernels.gumbel(key, at, ids, 0)).argmax()
        found[ids[winner]] += 1
    return found


def p_value(found: torch.Tensor, law: dict[int, float]) -> float:
    draws = int(found.sum())
    if any(found[i] > 0 for i in range(V) if i not in law):
        return 0.0
    pairs = [(float(found[i]), p * draws) for i, p in law.items()]
    large = [pair for pair in pairs if pair[1] >= 10]
    rest = [pair for pair in pairs if pair[1] < 10]
    if rest:
        large.append((sum(a for a, _ in rest), sum(b for _, b in rest)))
    chi2 = sum((a - b) ** 2 / b for a, b in large)
    return float(stats.chi2.sf(chi2, len(large) - 1)) if len(large) > 1 else 1.0


def survivors(fields: dict, prompt=(2, 3), output=(4, 4)):
    slots = Slots(1, V)
    slots.join(0, SamplingParams(**fields), key=1, prompt=list(prompt), output=list(output))
    return distribution(torch.tensor(LOGITS), slots[0])


@pytest.mark.parametrize("name", PARAMS)
def test_draws_follow_the_oracles_law(name):
    alive = survivors(PARAMS[name])
    found = counts(alive.ids, alive.logits, 2**15)
    assert p_value(found, expected(PARAMS[name], [2, 3], [4, 4])) > ALPHA


@pytest.mark.long
@pytest.mark.parametrize("name", PARAMS)
def test_a_million_draws_follow_the_oracles_law(name):
    alive = survivors(PARAMS[name])
    found = counts(alive.ids, alive.logits, 2**20)
    assert p_value(found, expected(PARAMS[name], [2, 3], [4, 4])) > ALPHA


def test_tails_of_one_in_a_million_are_drawn():
    """A token of probability 1e-6 against one certain rival, over 2^25 noises, vectorised by position-free seeds."""
    gap = math.log(1e6)
    wins = 0
    draws = 0
    for key in range(32):
        ids = torch.arange(2**21)
        noise = kernels.gumbel(key, 3, ids, 0)
        rare, sure = noise[0::2], noise[1::2] + gap
        wins += int((rare > sure).sum())
        draws += rare.numel()
    mean = draws / (1 + 1e6)
    assert abs(wins - mean) < 5 * math.sqrt(mean)
    assert wins > 0


FAULTS = {
    "temperature twice": lambda a: (a.ids, a.logits / 0.7),
    "top-p without the token that crosses": lambda a: (a.ids[:-1], a.logits[:-1]),
    "not renormalised: one token too heavy": lambda a: (a.ids, a.logits + (a.ids == a.ids[0]) * 0.2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    fields = {"temperature": 0.7, "top_p": 0.9}
    ids, logits = FAULTS[fault](survivors(fields))
    assert p_value(counts(ids, logits, 2**15), expected(fields, [2, 3], [4, 4])) < ALPHA


def test_noise_that_repeats_is_seen():
    """Half of the positions share one noise."""
    alive = survivors({})
    assert p_value(counts(alive.ids, alive.logits, 2**13, same_position=True), expected({}, [2, 3], [4, 4])) < ALPHA


def test_penalties_that_count_the_prompt_are_seen():
    fields = {"presence_penalty": 1.5}
    wrong = survivors(fields, prompt=(), output=(2, 3, 4, 4))
    assert p_value(counts(wrong.ids, wrong.logits, 2**13), expected(fields, [2, 3], [4, 4])) < ALPHA
