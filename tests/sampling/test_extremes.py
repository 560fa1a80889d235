"""Values at the ends of their ranges on rows at the ends of theirs, in any order: the kernels say what the reference
says. And laws at such
ends: the bound of top-n-sigma, long repetitions, what mirostat learns where nothing is left to choose."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from field_examples import company, example, replaced_by_mirostat
from kernels.backends import DEVICES, QUIET
from tailrace.errors import ParameterError
from tailrace.kernels.gpu import refine
from tailrace.kernels.gpu.refine import HANDLED
from tailrace.kernels.program import STAGES
from tailrace.kernels.status import EMPTY, OK
from tailrace.params import FIELDS, SamplingParams, list_switches
from tailrace.request.fields import Field
from tailrace.request.options import Watermark
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.backends.edit_table import EditTable
from tailrace.sampling.history import Suffixes
from tailrace.sampling.pipeline import EDITS, REFINEMENTS
from tailrace.sampling.reference import compute_distribution

INF = math.inf
TINY = 1e-320  # less than the least normal double


# What is left out: masses nearer to 1 than sums of floats can tell (top_p 1 − 1e-16), or that a number of equals has
# exactly (a half of them, XTC's threshold of 0.5 among two), denormal logits under a temperature above 1, an entropy
# below all floats where the unlikely is favoured for it; on a GPU, which of those is nearest to the entropy that lie
# 1e-29 from one another: its doubles tell them apart where those of the others do not.
def ends_of(field: Field) -> list:
    """The ends of a range that belong to it and are not neutral."""
    if field.range is None:
        return []
    ends = ((field.range.low, field.range.low_in), (field.range.high, field.range.high_in))
    return [end for end, inside in ends if inside and not field.neutral(end)]


ENDS: dict[str, list[dict]] = {
    "temperature": [{"temperature": t} for t in (1e-45, 1e-3, 1e6)],
    "dynatemp": [{"dynatemp_range": r} for r in (1e-30, 0.5, 1e6)],
    "smoothing": [{"smoothing_factor": f} for f in (1e-30, 0.3, 1e6)],
    "min_p": [{"min_p": p} for p in (TINY, 1e-10, 0.1, 1.0)],
    "top_k": [{"top_k": k} for k in (1, 2, 2**31 - 1)],
    "top_p": [{"top_p": p} for p in (0.0, TINY, 1e-7, 0.5123, 0.9011)],
    "top_n_sigma": [{"top_n_sigma": n} for n in (1e-300, 1.0, 2.0, 1e6)],
    "typical_p": [{"typical_p": p} for p in (0.0, TINY, 0.5123, 0.9011)],
    "top_a": [{"top_a": a} for a in (TINY, 0.3, 1.0)],
    "epsilon_cutoff": [{"epsilon_cutoff": e} for e in (TINY, 1e-4, 0.4, 0.999999)],
    "eta_cutoff": [{"eta_cutoff": e} for e in (TINY, 1e-4, 0.4, 0.999999)],
    "xtc": [{"xtc_probability": 1.0, "xtc_threshold": t} for t in (TINY, 0.1, 0.45)],
    "tfs_z": [{"tfs_z": z} for z in (0.0, TINY, 0.3, 0.95)],
    "top_h": [{"top_h": h} for h in (TINY, 0.4, 1.0)],
    "min_k": [{"min_k": True, "min_k_tau": t} for t in (0.0, 3.0, 1e3)],
    "mirostat": [{"mirostat": v, "mirostat_tau": t} for v in (1, 2) for t in (1e-9, 2.0, 100.0)],
    "adaptive_p": [{"adaptive_target": t} for t in (0.0, TINY, 0.3, 1.0)],
    "synthid": [{"watermark": Watermark(kind="synthid", key=3, context=1, depth=d)} for d in (1, 30, 64)],
}
for name in REFINEMENTS.keys() - ENDS.keys() - {"p_less"}:  # whose bound may be a value of the row exactly
    ENDS[name] = [
        company(of) | {of: end} for of in list_switches(name) for end in (*ends_of(FIELDS[of]), example(FIELDS[of]))
    ]


NARROW = 4  # the row whose logits lie 1e-29 from one another


def rows_of(vocab: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    x, ids, one = torch.randn(vocab, generator=rng), torch.arange(vocab), torch.randint(0, vocab, (1,), generator=rng)
    none = torch.tensor(-INF)
    return torch.stack(
        [
            x * 2,
            x.round(),
            x * 30,
            x + 1e5,
            x * 1e-29,
            x * 1e37,
            x.sign() * 1e38,
            torch.zeros(vocab),
            torch.full((vocab,), 3.4e38),
            torch.where(ids == one, 1.0, none),
            torch.where((ids == one) | (ids == 0), x, none),
            torch.where((x > 0) | (ids == one), x, none),
            torch.where(ids == one, 3e38, -3e38),
            torch.where(ids == one, 60.0, 0.0),
            torch.where(ids % 5 == 0, 2.0, 0.0),
            torch.full((vocab,), -INF),
        ]
    )


def differing(seed: int, backend: str, tries: int, sizes: tuple[int, ...]) -> list[tuple]:
    """Where the backend says something else than the reference, in so many random pairs and triples of refinements."""
    rng, out = random.Random(seed), []
    for _ in range(tries):
        vocab, names = rng.choice(sizes), rng.sample(sorted(ENDS), rng.choice((1, 2, 2, 3)))
        if {"dynatemp", "adaptive_p"} <= set(names):
            continue
        fields = {k: v for name in names for k, v in rng.choice(ENDS[name]).items()}
        if rng.random() < 0.6:
            fields["sampler_order"] = tuple(names)
        if rng.random() < 0.2:
            fields["presence_penalty"] = 0.5
        try:
            params = SamplingParams(**fields)
        except ParameterError:  # mirostat beside a truncation
            continue
        slots, logits = Slots(1, vocab), rows_of(vocab, rng.randrange(2**31))
        slots.add(0, params, key=rng.randrange(2**40), prompt=[0], output=[1], eos_token_ids=[1])
        n = logits.shape[0]
        rows = Rows.plain([0] * n, range(n), range(2, n + 2))
        found, wanted = (
            Sampler(slots, backend)(logits.to(DEVICES[backend]), rows),
            Sampler(slots, "reference")(logits, rows),
        )  # pyright: ignore
        assert wanted.status.tolist() == [OK] * (n - 1) + [EMPTY]
        unsure = backend == "gpu" and params.typical_p < 1e-9
        pairs = zip(found.status.tolist(), found.tokens(), wanted.status.tolist(), wanted.tokens(), strict=True)
        out += [
            (vocab, fields, row, *pair)
            for row, pair in enumerate(pairs)
            if pair[:2] != pair[2:] and not (unsure and row == NARROW)
        ]
    return out


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 60))])
def test_extremes_are_the_same_in_the_kernels(seed):
    assert differing(seed, "cpu", 60, (2, 5, 61, 300, 1100)) == []


@QUIET
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
def test_extremes_are_the_same_on_a_gpu(seed):
    assert differing(seed, "gpu", 2, (5, 61)) == []


def drawn(fields: dict, row: list[float], backend: str) -> set[int]:
    """What comes in 60 draws."""
    slots = Slots(1, len(row))
    slots.add(0, SamplingParams(**fields), key=5, prompt=[0])
    logits = torch.tensor([row], device=DEVICES[backend])
    out = Sampler(slots, backend)(logits, Rows.plain([0] * 60, [0] * 60, range(60)))  # pyright: ignore
    assert out.status.tolist() == [OK] * 60
    return {tokens[0] for tokens in out.tokens()}


@pytest.mark.few(8)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("gap", [1e-30, 0.1, 0.7, 1.0 / 3.0, 1.3, 1e37])
@pytest.mark.parametrize("n", [2.0, 2.0 - 2**-8])
def test_of_two_tokens_both_lie_on_the_bound_of_two_sigma(n, gap, backend):
    """l_max − 2 σ is the other one exactly: it stays, as the paper's ≥ says; a little less and it goes."""
    for offset in (0.0, 3.7, -19.3) if 1e-6 < gap < 1e6 else (0.0,):
        row = [-INF, offset + gap, -INF, offset, -INF]
        at_temperature = {"temperature": 1e6} if gap > 1e6 else {}
        kept = drawn({"top_n_sigma": n, "sampler_order": ("top_n_sigma",), **at_temperature}, row, backend)
        assert kept == ({1} if n < 2 or gap > 1e6 else {1, 3})


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_bound_above_the_likeliest_keeps_the_likeliest(backend):
    assert drawn(
        {"top_p": 0.0, "epsilon_cutoff": 0.5},
        [0.0, 0.3, 0.1] * 9,
        backend,
    ) == {1}


# ---- tables that can't fall apart


def test_every_stage_of_the_gpu_has_a_branch():
    handled = [list(STAGES)[kind.value] for kind in HANDLED]
    assert handled == [kind for kind, info in STAGES.items() if info.on_gpu]
    source = Path(refine.__file__).read_text()
    for stage in handled:  # asked for somewhere: what no branch asks for would be taken for another
        assert re.search(rf"\bkind [!=]= {stage.upper()}\b", source), stage


def test_every_refinement_but_those_that_reshape_is_known_to_mirostat():
    replaced = replaced_by_mirostat()
    assert {"top_p", "xtc_probability", "adaptive_target", "p_less_norm"} < set(replaced)
    cutting = {
        name for name, field in FIELDS.items() if field.refinement and field.kind != "reshape" and not field.needs
    }
    assert cutting - set(replaced) == {"mirostat", "watermark"}
    for name in replaced:
        with pytest.raises(ParameterError, match=f"{name} has no effect with mirostat"):
            SamplingParams(mirostat=2, **{name: example(FIELDS[name])})


# ---- DRY


def by_hand(tokens: list[int], breakers: set[int]) -> list[tuple[int, int]]:
    out = []
    for end in range(len(tokens) - 1):
        n = 0
        while n <= end and tokens[end - n] == tokens[-1 - n] and tokens[end - n] not in breakers:
            n += 1
        if tokens[end] == tokens[-1]:
            out.append((end, n))
    return out


@pytest.mark.few(20)
@pytest.mark.parametrize("seed", range(60))
def test_agreements_of_any_length_grow_and_are_taken_back(seed):
    rng = random.Random(seed)
    kinds, breakers = rng.choice([1, 2, 3]), set(rng.choice([(), (0,), (1, 2)]))
    tokens = [rng.randrange(kinds) for _ in range(rng.randrange(2, 150))]
    found, twins = Suffixes(tokens, breakers), []
    for _ in range(30):
        if rng.random() < 0.5 and len(tokens) > 1:
            tokens.pop()
            found.pop()
        else:
            tokens.append(rng.randrange(kinds))
            found.append(tokens[-1])
        assert list(zip(*(part.tolist() for part in found.find_agreements()), strict=True)) == by_hand(tokens, breakers)
        if rng.random() < 0.2:  # which one of the two goes on does not matter
            twin = found.copy()
            twins.append((found, list(tokens)))
            found = twin
    for twin, said in twins:
        assert list(zip(*(part.tolist() for part in twin.find_agreements()), strict=True)) == by_hand(said, breakers)


def test_copies_share_what_is_known_of_the_prompt(monkeypatch):
    """Each of 63 copies took 10 ms for a prompt of 8,000 tokens: it was indexed again, and the same edits were worked
    out again."""
    worked_out = []
    for name, edit in EDITS.items():
        if name in ("dry", "no_repeat_ngram"):
            counted = dataclasses.replace(edit, edits=lambda slot, e=edit.edits: worked_out.append(slot) or e(slot))
            monkeypatch.setitem(EDITS, name, counted)
    params = SamplingParams(dry_multiplier=1.0, no_repeat_ngram_size=2, repetition_penalty=1.2, n=5)
    slots = Slots(5, 200)
    slots.add(0, params, key=1, prompt=[5, 6, 7, 5, 6, 7, 5, 6], handled_by_caller=("n",))
    before = len(worked_out)
    assert before > 0
    for twin in range(1, 5):
        slots.fork(0, twin, key=twin)
    assert len(worked_out) == before
    first = slots[0].history
    assert all(slots[i].history.repeats.first is first.repeats.first for i in range(5))
    for index in range(5):  # and each goes its own way
        slots.commit([index], [[7] * index])
    for index in range(5):
        other = Slots(1, 200)
        other.add(0, params, key=1, prompt=[5, 6, 7, 5, 6, 7, 5, 6], output=[7] * index, handled_by_caller=("n",))
        written = [EditTable.of(edits) for edits in (slots[index].next_edits, other[0].next_edits)]
        assert len({repr((e.banned, e.before, e.later, e.penalty.counts.lists())) for e in written}) == 1
        assert slots[index].history.counts is written[0].penalty.counts


@pytest.mark.parametrize("period", [1, 7, 100])
def test_dry_grows_with_the_stretch_as_far_as_it_goes(period):
    """Base 1.02: held at 3.5 when stretches were followed for 64 tokens more than are allowed."""
    slots, tokens = Slots(1, 200), list(range(period)) * (400 // period)
    slots.add(0, SamplingParams(dry_multiplier=1.0, dry_base=1.02), key=1, prompt=tokens)
    [edit] = slots[0].next_edits
    n = len(tokens) - period if period > 1 else len(tokens) - 1
    assert edit.ids.tolist() == [0]
    assert edit.values == pytest.approx(-(1.02 ** (n - 2)), rel=1e-6)
    slots.commit([0], [[0]])
    assert slots[0].next_edits[0].values == pytest.approx(-(1.02 ** (n - 1)), rel=1e-6)
    assert np.isfinite(slots[0].next_edits[0].values).all()


# ---- what is learnt


def test_mirostat_1_truncates_k():
    """Zipf with s = 1, V = 4, μ = 2 τ: k = (2^μ / ln V), 2.9 → 2."""
    vocab, mu = 64, math.log2(2.9 * math.log(64))
    row = -torch.log(torch.arange(1, vocab + 1, dtype=torch.float64)).float()
    slots = Slots(1, vocab)
    slots.add(0, SamplingParams(mirostat=1, mirostat_tau=mu / 2), key=1, prompt=[0])
    assert compute_distribution(row, slots[0]).ids.tolist() == [0, 1]


@pytest.mark.parametrize("fields", [{"mirostat": 1}, {"mirostat": 2}, {"adaptive_target": 0.2}])
def test_where_one_token_is_left_its_own_certainty_is_learnt_from(fields):
    """Not the row before's: there the token may be unlikely beyond what a double holds, and its logarithm is no
    number."""
    slots = Slots(1, 50)
    slots.add(0, SamplingParams(**fields), key=1, prompt=[0])
    flat, alone = torch.zeros(1, 50), torch.full((1, 50), -INF)
    flat[0, 9], alone[0, 9] = -2000.0, 0.0
    slots.commit([0], Sampler(slots)(flat, Rows.plain([0], [0])).tokens())
    before = dict(slots[0].state)
    sampled = Sampler(slots)(alone, Rows.plain([0], [0]))
    assert sampled.tokens() == [[9]]
    assert slots[0].updates == [(9, pytest.approx(0.0))]
    slots.commit([0], sampled.tokens())
    if "mirostat" in fields:
        assert slots[0].state["mirostat_mu"] == pytest.approx(before["mirostat_mu"] + 0.1 * 5.0)
    else:
        assert slots[0].state["adaptive_sum"] == pytest.approx(1.0 + 0.9 * before["adaptive_sum"])
