"""The law of the emitted token at each depth, by counts, at a real vocabulary: V = 49,152, through the kernels. alpha =
1e-6 per test.

Cells are classes of tokens of similar probability; each holds at least 1 / 300 of the mass. With 2^20 draws a total
variation of 0.01 is found nearly always. What a step emits is drawn on to K + 1 tokens; a lossless rule then has, at
every depth, its row's law.
"""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from tailrace.kernels.rows import Rule
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots

ALPHA = 1e-6
V, K, BATCH = 49_152, 2, 512
TEMPERATURE = 0.8


def rows_of(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [K + 1, V] and proposals [K, V], different at each position."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(K + 1, V, generator=rng) * 2.5
    logits[:, :40] += 6.0
    proposals = (logits / TEMPERATURE + torch.randn(K + 1, V, generator=rng)).softmax(1)
    return logits, proposals[:K]


def emitted(rule: Rule, dense: bool, draws: int, q_shift: int = 0) -> torch.Tensor:
    """int64 [draws, K + 1], drawn on where a step emitted less."""
    logits, proposals = rows_of(1)
    rng = torch.Generator().manual_seed(2)
    slots = Slots(1, V)
    slots.add(0, SamplingParams(temperature=TEMPERATURE), key=17, prompt=[1])
    sampler, law = Sampler(slots), (logits.double() / TEMPERATURE).softmax(1)
    proposed = torch.cat([proposals.roll(q_shift, 0), torch.zeros(1, V)]).repeat(BATCH, 1) if dense else None
    source = [0] * BATCH
    found = []
    for turn in range(draws // BATCH):
        drafts = torch.stack([torch.multinomial(q, BATCH, True, generator=rng) for q in proposals], 1)
        if not dense:
            drafts[:] = logits[:K].argmax(1)
        positions = [(turn * BATCH + i) * (K + 1) + 1 for i in range(BATCH)]
        rows = Rows.drafted([0] * BATCH, positions, drafts.tolist(), [rule] * BATCH, proposed, source=source)
        out = sampler(logits, rows).token_ids
        more = torch.stack([torch.multinomial(p, BATCH, True, generator=rng) for p in law], 1)
        found.append(torch.where(out < 0, more, out))
    return torch.cat(found)


def p_values(found: torch.Tensor) -> list[float]:
    law = (rows_of(1)[0].double() / TEMPERATURE).softmax(1)
    out = []
    for depth, p in enumerate(law):
        order = p.argsort(descending=True)
        cell = torch.empty(V, dtype=torch.int64)
        cell[order] = (p[order].cumsum(0) * 300).long().clamp(max=299)
        wanted = torch.zeros(300, dtype=torch.float64).index_add_(0, cell, p) * found.shape[0]
        got = torch.bincount(cell[found[:, depth]], minlength=300).double()
        used = wanted > 0
        chi2 = float(((got - wanted)[used] ** 2 / wanted[used]).sum())
        out.append(float(stats.chi2.sf(chi2, int(used.sum()) - 1)))
    return out


@pytest.mark.few(2)
@pytest.mark.parametrize(("rule", "dense"), [("rejection", True), ("block", True), ("rejection", False)])
def test_each_depth_has_its_rows_law_in_a_few_draws(rule, dense):
    assert min(p_values(emitted(rule, dense, 2**11))) > ALPHA


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "dense"), [("rejection", True), ("block", True), ("exact", True), ("rejection", False), ("exact", False)]
)
def test_each_depth_has_its_rows_law_in_many_draws(rule, dense):
    """32 times as many as show the planted faults below."""
    assert min(p_values(emitted(rule, dense, 2**17))) > ALPHA


@pytest.mark.long
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_proposals_of_another_position_are_seen(rule):
    assert min(p_values(emitted(rule, True, 2**12, q_shift=1))) < ALPHA


@pytest.mark.long
def test_a_lossy_rule_is_seen():
    assert min(p_values(emitted("typical", True, 2**11))) < ALPHA
