"""The law of the draws, by counts: chi-square against the oracle, at a stated level, on fixed seeds; and that it sees
planted faults.

alpha = 1e-6 per test (the quantile is exact, from scipy). Power: with 2^17 draws a total variation of 0.01 has a
non-centrality above 4 · 0.01² · 2^17 = 52 at 40 cells, with 2^20 above 400: found with probability 0.6 and 1; every
planted fault is far larger.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch
from scipy import stats

from field_examples import uncovered
from oracles import brute
from tailrace import kernels
from tailrace.kernels.dispatch import find
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, reference
from tailrace.sampling.reference import compute_distribution

ALPHA = 1e-6
V = 40
LOGITS = [1.5 * math.sin(i * 1.7) + (2.0 if i % 7 == 0 else 0.0) for i in range(V)]
PROMPT, OUTPUT = [2, 3], [4, 4]
SEED = 77
SHARE = 2**14  # positions whose noise is made at once
PARAMS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 2.5},
    "dynatemp": {"dynatemp_range": 0.6, "dynatemp_exponent": 1.5},
    "smoothing": {"smoothing_factor": 0.3, "smoothing_curve": 1.8},
    "min-p": {"min_p": 0.1},
    "top-k": {"top_k": 9},
    "top-p": {"top_p": 0.8},
    "top-a": {"top_a": 0.5},
    "typical": {"typical_p": 0.7},
    "tail-free": {"tfs_z": 0.9},
    "epsilon": {"epsilon_cutoff": 0.01},
    "eta": {"eta_cutoff": 0.02},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "top-h": {"top_h": 0.6},
    "p-less": {"p_less": True},
    "p-less-norm": {"p_less_norm": True, "temperature": 1.5},
    "min-k": {"min_k": True, "temperature": 2.0},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.06},
    "adaptive-p": {"adaptive_target": 0.2},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 2.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 2.0},
    "penalties": {"presence_penalty": 0.4, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "all": {
        "temperature": 0.9,
        "min_p": 0.02,
        "top_k": 20,
        "top_p": 0.95,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.2,
    },
}
PARAMS |= uncovered(PARAMS)


def expected(fields: dict) -> dict[int, float]:
    same = {name: value for name, value in fields.items() if name in brute.Ask.__dataclass_fields__}
    ask = brute.Ask(**same, mirostat_mu=2 * fields.get("mirostat_tau", 5.0))
    return brute.distribution(LOGITS, ask, PROMPT, OUTPUT)


def slots_for(fields: dict, prompt=PROMPT, output=OUTPUT) -> Slots:
    slots = Slots(1, V)
    slots.add(0, SamplingParams(**fields), key=SEED, prompt=prompt, output=output)
    return slots


def by_kernels(fields: dict, draws: int) -> torch.Tensor:
    """How often each id comes over so many positions: whole steps through the sampler."""
    found = torch.zeros(V)
    sampler, row = Sampler(slots_for(fields), "cpu"), torch.tensor(LOGITS)[None]
    for first in range(0, draws, 2**15):
        positions = range(first, first + 2**15)
        out = sampler(row, Rows.plain([0] * 2**15, [0] * 2**15, positions))
        found += torch.bincount(out.token_ids[:, 0], minlength=V)
    return found


def by_reference(fields: dict, draws: int) -> torch.Tensor:
    """The same from the reference's distribution and the reference's noise, many positions at once."""
    alive = compute_distribution(torch.tensor(LOGITS), slots_for(fields)[0])
    return counted(alive.ids, alive.logits, torch.arange(draws))


@functools.cache
def noise(share: int) -> torch.Tensor:
    """[SHARE, V] of the reference, at positions from share · SHARE: the same for every case, since noise knows no
    logits."""
    positions = torch.arange(share * SHARE, (share + 1) * SHARE)
    return find("gumbel", "reference")(SEED, positions[:, None], torch.arange(V).expand(SHARE, V), 0)


def counted(ids: torch.Tensor, logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """How often each id is drawn at these positions, which lie in one share where they are not all of them."""
    found = torch.zeros(V)
    for some in positions.split(SHARE):
        share = noise(int(some.max()) // SHARE)[some % SHARE][:, ids]
        found += torch.bincount(ids[(logits + share).argmax(1)], minlength=V)
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


BACKENDS = {"cpu": by_kernels, "reference": by_reference}
CASES = [(name, backend) for name in PARAMS for backend in BACKENDS]


def some(backend: str, name: str) -> list[pytest.MarkDecorator]:
    """The kernels' alone in `make test`: what the reference keeps and how likely is the oracle's to the bit
    (test_sampler), so only its draw can fail here, and a draw of it costs ten times a kernel's."""
    return [pytest.mark.long] if backend == "reference" else []


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "backend"), [pytest.param(name, backend, marks=some(backend, name)) for name, backend in CASES]
)
def test_draws_follow_the_oracles_law(name, backend):
    assert p_value(BACKENDS[backend](PARAMS[name], 2**17), expected(PARAMS[name])) > ALPHA


@pytest.mark.long
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_a_million_draws_follow_the_oracles_law(name, backend):
    assert p_value(BACKENDS[backend](PARAMS[name], 2**20), expected(PARAMS[name])) > ALPHA


def rare_wins(draws: int, vocab: int, gap: float) -> int:
    """How often one of vocab − 1 tokens, each e^−gap as likely as the first, is drawn."""
    row = torch.full((1, vocab), -gap)
    row[0, 0] = 0.0
    slots = Slots(1, vocab)
    slots.add(0, SamplingParams(), key=5, prompt=[1])
    sampler, wins = Sampler(slots), 0
    for first in range(0, draws, 2**14):
        out = sampler(row, Rows.plain([0] * 2**14, [0] * 2**14, range(first, first + 2**14)))
        wins += int((out.token_ids != 0).sum())
    return wins


@pytest.mark.long
@pytest.mark.parametrize(
    ("draws", "vocab", "p"),
    [
        (2**17, 1000, 1e-6),
        (2**14, 65_536, 1e-8),
        pytest.param(2**22, 2, 1e-5, marks=pytest.mark.long),
        pytest.param(2**20, 1000, 1e-6, marks=pytest.mark.long),
        pytest.param(2**20, 131_072, 1e-10, marks=pytest.mark.long),
    ],
)
def test_tails_are_drawn_as_often_as_they_should(draws, vocab, p):
    """Case 08: with 24-bit uniforms no noise is above 17.3, and a token of 1e-9 never comes."""
    wins = rare_wins(draws, vocab, -math.log(p))
    share = (vocab - 1) * p / (1 + (vocab - 1) * p)
    assert abs(wins - draws * share) < 5 * math.sqrt(draws * share) + 1
    assert wins > 0


@pytest.mark.long
def test_coarse_noise_is_seen(monkeypatch):
    """The planted fault: noise of 24-bit uniforms, drawn by the same sampler's reference, leaves the tail out."""

    def coarse(key: int, position: int, ids: torch.Tensor, stream: int) -> torch.Tensor:
        bits = kernels.words(key, position, stream, ids) >> 8
        return -torch.log(-torch.log1p(-(bits.double() + 0.5) * 2.0**-24)).float()

    slots = Slots(1, 65_536)
    slots.add(0, SamplingParams(), key=5, prompt=[1])
    row = torch.full((65_536,), math.log(1e-7))
    row[0] = 0.0
    candidates = compute_distribution(row, slots[0])
    monkeypatch.setattr(reference.kernels, "gumbel", coarse)
    wins = sum(reference.draw_token(candidates, slots[0], position) != 0 for position in range(1000))
    expected = 1000 * 65_535e-7
    assert (
        wins < expected / 2
    )  # and the true noise gives as many as expected: test_tails_are_drawn_as_often_as_they_should


WIDE = 1500


LOOSE = [{}, {"temperature": 1.5}, {"top_k": 1000}, {"min_p": 1e-4}, {"top_p": 0.99}]
SHAPES = ["flat", "two levels", "slope"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        pytest.param(kind, fields, id=f"{kind}-{fields}", marks=[] if i % 3 == j else pytest.mark.long)
        for i, fields in enumerate(LOOSE)
        for j, kind in enumerate(SHAPES)
    ],
)
def test_draws_that_skip_most_tokens_have_the_law(fields, kind):
    """Rows of many blocks, where hot bits decide whose noise is looked at: by probability classes of 15 tokens each."""
    rng = torch.Generator().manual_seed(3)
    row = {
        "flat": torch.zeros(WIDE),
        "two levels": torch.where(torch.rand(WIDE, generator=rng) < 0.02, 5.0, 0.0),
        "slope": torch.arange(WIDE) / 200.0,
    }[kind]
    slots = Slots(1, WIDE)
    slots.add(0, SamplingParams(**fields), key=9, prompt=[1])
    alive = compute_distribution(row, slots[0])
    law = torch.zeros(WIDE, dtype=torch.float64)
    law[alive.ids] = alive.probabilities()
    found = torch.zeros(WIDE)
    for first in range(0, 2**17, 2**15):
        out = Sampler(slots)(row[None], Rows.plain([0] * 2**15, [0] * 2**15, range(first, first + 2**15)))
        found += torch.bincount(out.token_ids[:, 0], minlength=WIDE)
    assert found[law == 0].sum() == 0
    observed, wanted = found.double().view(-1, 15).sum(1), law.view(-1, 15).sum(1) * 2**17
    cells = wanted > 5
    chi2 = float(((observed - wanted)[cells] ** 2 / wanted[cells]).sum())
    assert stats.chi2.sf(chi2, int(cells.sum()) - 1) > ALPHA


FAULTS = {
    "temperature twice": lambda a: (a.ids, a.logits / 0.7),
    "top-p without the token that crosses": lambda a: (
        a.ids[a.logits > a.logits.min()],
        a.logits[a.logits > a.logits.min()],
    ),
    "not renormalised: one token too heavy": lambda a: (a.ids, a.logits + (a.ids == a.ids[0]) * 0.2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    fields = {"temperature": 0.7, "top_p": 0.9}
    ids, logits = FAULTS[fault](compute_distribution(torch.tensor(LOGITS), slots_for(fields)[0]))
    assert p_value(counted(ids, logits, torch.arange(2**15)), expected(fields)) < ALPHA


def test_noise_that_repeats_is_seen():
    """Off by one: a position that is not counted up. Half of the positions share one noise."""
    alive = compute_distribution(torch.tensor(LOGITS), slots_for({})[0])
    positions = torch.arange(2**13)
    positions[::2] = 5
    assert p_value(counted(alive.ids, alive.logits, positions), expected({})) < ALPHA


def test_penalties_that_count_the_prompt_are_seen():
    fields = {"presence_penalty": 1.5}
    wrong = compute_distribution(torch.tensor(LOGITS), slots_for(fields, prompt=(), output=(2, 3, 4, 4))[0])
    assert p_value(counted(wrong.ids, wrong.logits, torch.arange(2**13)), expected(fields)) < ALPHA


def test_neighbouring_positions_ids_and_streams_are_independent():
    ids = torch.arange(2**12)
    base = kernels.gumbel(3, 10, ids, 0)
    for other in (
        kernels.gumbel(3, 11, ids, 0),
        kernels.gumbel(4, 10, ids, 0),
        kernels.gumbel(3, 10, ids, 1),
        base.roll(1),
    ):
        r = float(torch.corrcoef(torch.stack([base, other]))[0, 1])
        assert abs(r) < 5 / math.sqrt(ids.numel())
