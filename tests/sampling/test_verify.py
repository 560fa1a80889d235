"""Verification of drafts: the law by enumeration, the same tokens as without drafts, both backends; and that planted
faults are seen."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy import stats

from oracles import brute
from tailrace import kernels
from tailrace.kernels.rows import Rule
from tailrace.kernels.status import NAN, OK
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, verify

ALPHA = 1e-6
V = 4
TARGETS = [[0.5, 0.2, 0.2, 0.1], [0.05, 0.6, 0.3, 0.05], [0.25, 0.25, 0.1, 0.4]]
PROPOSALS = [[0.2, 0.5, 0.1, 0.2], [0.3, 0.3, 0.35, 0.05]]
K = len(PROPOSALS)


def slots_for(fields: dict, vocab: int = V, **more) -> Slots:
    slots = Slots(1, vocab)
    slots.add(0, SamplingParams(**fields), key=11, **({"prompt": [0]} | more))
    return slots


def drafted(n: int, dense: bool, seed: int = 1) -> torch.Tensor:
    """n pairs of drafts: drawn from the proposals, or always the same."""
    if not dense:
        return torch.tensor([1, 1]).expand(n, K)
    rng = torch.Generator().manual_seed(seed)
    return torch.stack([torch.multinomial(torch.tensor(q), n, True, generator=rng) for q in PROPOSALS], 1)


def outcomes(
    n: int, rule: Rule, backend: str, dense: bool, targets=TARGETS, proposals=PROPOSALS, drafts=None, first=1
) -> list[tuple[int, ...]]:
    """What n independent requests emit."""
    drafts = drafted(n, dense) if drafts is None else drafts
    q = torch.tensor([*proposals, [0.0] * V]).repeat(n, 1) if dense else None
    logits = torch.tensor(targets).log().repeat(n, 1)
    rows = Rows.drafted([0] * n, [10 * i + first for i in range(n)], drafts.tolist(), [rule] * n, q)
    out = Sampler(slots_for({}), backend)(logits, rows)
    assert out.status.eq(OK).all()
    return [tuple(ids[:count]) for ids, count in zip(out.token_ids.tolist(), out.num_tokens.tolist(), strict=True)]


def p_value(found: list[tuple[int, ...]], law: brute.Law) -> float:
    counts = Counter(found)
    if any(said not in law for said in counts):
        return 0.0
    cells = [(counts[said], mass * len(found)) for said, mass in law.items() if mass > 0]
    large = [c for c in cells if c[1] >= 10]
    rest = [c for c in cells if c[1] < 10]
    if rest:
        large.append((sum(a for a, _ in rest), sum(b for _, b in rest)))
    return float(stats.chi2.sf(sum((a - b) ** 2 / b for a, b in large), len(large) - 1))


def continued(found: list[tuple[int, ...]], seed: int = 2) -> list[tuple[int, ...]]:
    """Each outcome drawn on to K + 1 tokens: a lossless rule then has the plain law."""
    rng = torch.Generator().manual_seed(seed)
    more = torch.stack(
        [torch.multinomial(torch.tensor(p), len(found), True, generator=rng) for p in TARGETS], 1
    ).tolist()
    return [(*said, *tail[len(said) :]) for said, tail in zip(found, more, strict=True)]


# of the kernels more is drawn in test_a_million_verifications; the planted faults below are seen in 2,000 and 2¹⁴
SIZES = {"cpu": 2**15, "reference": 2000}


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize("dense", [True, False])
def test_rejection_has_the_law_of_its_formula(backend, dense):
    q = PROPOSALS if dense else [[0.0, 1.0, 0.0, 0.0]] * 2
    found = outcomes(SIZES[backend], "rejection", backend, dense)
    assert p_value(found, brute.rejection_law(TARGETS, q)) > ALPHA


@pytest.mark.few(2)
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("rule", ["exact", "rejection", "block"])
def test_every_rule_is_lossless(rule, backend, dense):
    found = outcomes(SIZES[backend], rule, backend, dense)
    assert p_value(continued(found), brute.plain_law(TARGETS, K + 1)) > ALPHA


@pytest.mark.long
def test_block_verification_accepts_at_least_as_many():
    lengths = {rule: sum(len(said) for said in outcomes(2**15, rule, "cpu", True)) for rule in ("rejection", "block")}
    assert lengths["block"] >= lengths["rejection"]


@pytest.mark.few(4)
@pytest.mark.parametrize("rule", ["exact", "rejection", "block", "typical"])
@pytest.mark.parametrize("dense", [True, False])
def test_backends_agree(rule, dense):
    assert outcomes(400, rule, "cpu", dense) == outcomes(400, rule, "reference", dense)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["exact", "rejection", "block"])
@pytest.mark.parametrize("dense", [True, False])
def test_a_million_verifications(rule, dense):
    found = [
        said
        for part in range(16)
        for said in outcomes(2**16, rule, "cpu", dense, drafts=drafted(2**16, dense, part), first=1 + 10 * 2**16 * part)
    ]
    assert p_value(continued(found), brute.plain_law(TARGETS, K + 1)) > ALPHA


# ---- planted faults


def test_proposals_of_the_wrong_position_are_seen():
    found = outcomes(2**14, "rejection", "cpu", True, proposals=PROPOSALS[::-1])
    assert p_value(continued(found), brute.plain_law(TARGETS, K + 1)) < ALPHA


@pytest.mark.long
def test_accepting_everything_is_seen(monkeypatch):
    monkeypatch.setattr(verify.kernels, "uniform", lambda *_: 0.0)
    found = outcomes(2000, "rejection", "reference", True)
    assert p_value(continued(found), brute.plain_law(TARGETS, K + 1)) < ALPHA


@pytest.mark.long
def test_drawing_what_was_rejected_from_the_whole_target_is_seen(monkeypatch):
    rest = verify.compute_remainder
    monkeypatch.setattr(verify, "compute_remainder", lambda p, q, scale: rest(p, torch.zeros_like(p), 1.0))
    found = outcomes(2000, "rejection", "reference", True)
    assert p_value(continued(found), brute.plain_law(TARGETS, K + 1)) < ALPHA


@pytest.mark.long
def test_noise_shared_by_draft_and_acceptance_is_seen():
    """Drafts drawn by the very numbers that then decide on them."""
    n = 2**14
    edges = [torch.tensor(q).cumsum(0) for q in PROPOSALS]
    drafts = torch.tensor(
        [[int(torch.searchsorted(edges[j], brute.uniform(11, 10 * i + 1 + j, 1))) for j in range(K)] for i in range(n)]
    ).clamp(max=V - 1)
    found = outcomes(n, "rejection", "cpu", True, drafts=drafts)
    assert p_value(continued(found), brute.plain_law(TARGETS, K + 1)) < ALPHA


@pytest.mark.few(1)
@pytest.mark.parametrize("shared", [True, False])
def test_noise_shared_by_draft_and_residual_is_seen(shared):
    """Drafts drawn by Gumbel-max with the noise that then draws what replaces them: what nearly won before wins too
    seldom."""
    n, targets = 2**13, [[0.1, 0.6, 0.25, 0.05], [0.2, 0.2, 0.5, 0.1], [0.7, 0.1, 0.1, 0.1]]
    proposals = [[0.6, 0.35, 0.01, 0.04], [0.4, 0.55, 0.02, 0.03]]
    stream = verify.RESIDUAL_STREAM if shared else 99
    noise = [kernels.gumbel(11, 10 * i + 1 + j, torch.arange(V), stream) for i in range(n) for j in range(K)]
    drafts = (torch.stack(noise).view(n, K, V) + torch.tensor(proposals).log()).argmax(2)
    found = outcomes(n, "rejection", "cpu", True, targets=targets, proposals=proposals, drafts=drafts)
    assert (p_value(found, brute.rejection_law(targets, proposals)) < ALPHA) == shared


# ---- the same tokens as without drafts

PARAMS: dict[str, dict] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "truncated": {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.3, "top_p": 0.95},
    "greedy penalties": {"temperature": 0.0, "frequency_penalty": 0.6},
    "window": {"presence_penalty": 1.5, "penalty_last_n": 3},
    "bias and bans": {"logit_bias": {3: 2.0}, "bad_words": ((4,), (1, 2), (5, 6, 7)), "top_k": 20},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": (1, 2)},
    "dry": {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    "ngram": {"no_repeat_ngram_size": 2},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "adaptive": {"adaptive_target": 0.3},
    "typical": {"typical_p": 0.8, "top_a": 0.01},
    "tail-free": {"tfs_z": 0.9},
}
WORDS = 29


def model(tokens: list[int]) -> torch.Tensor:
    """Logits after these tokens: a table, so that the same text always has the same ones."""
    return torch.randn(WORDS, generator=torch.Generator().manual_seed(7 * tokens[-1] + 3 * tokens[-2] + 1)) * 2


def generate(params: dict, count: int, guess) -> tuple[list[int], list[float]]:
    """Tokens and logprobs with up to 4 drafts per step."""
    slots = slots_for(params | {"logprobs": 2}, WORDS, prompt=[5, 6], output=[], eos_token_ids=[0])
    tokens, logprobs = [5, 6], []
    while len(tokens) < count:
        drafts = guess(tokens)
        texts = [tokens + drafts[:j] for j in range(len(drafts) + 1)]
        out = Sampler(slots)(torch.stack([model(text) for text in texts]), Rows.drafted([0], [len(tokens)], [drafts]))
        taken = out.token_ids[0, : int(out.num_tokens[0])].tolist()
        logprobs += [entry.logprob for entry in out.logprobs[0]]
        slots.commit([0], [taken])
        tokens += taken
    return tokens[:count], logprobs[: count - 2]


@pytest.mark.parametrize("name", PARAMS)
def test_the_exact_rule_changes_nothing(name):
    """Case 14: every penalty, ban and state applies per draft position; tokens and logprobs are those of plain
    sampling."""
    plain, logprobs = generate(PARAMS[name], 60, lambda tokens: [])

    def half_right(tokens: list[int]) -> list[int]:
        right = plain[len(tokens) : len(tokens) + 4]
        return [t if (len(tokens) + j) % 3 else (t + 1) % WORDS for j, t in enumerate(right)]

    for guess in (half_right, lambda tokens: plain[len(tokens) : len(tokens) + 4], lambda tokens: [3, 3]):
        assert generate(PARAMS[name], 60, guess) == (plain, pytest.approx(logprobs, abs=1e-5))


@pytest.mark.parametrize("name", ["penalties", "truncated", "window", "dry"])
def test_the_slot_is_as_before_until_tokens_are_committed(name):
    slots = slots_for(PARAMS[name], WORDS, prompt=[5, 6], output=[1, 2, 3])
    logits = torch.randn(4, WORDS, generator=torch.Generator().manual_seed(2))
    rows = Rows.drafted([0], [5], [[1, 2, 3]], ["rejection"])
    first = Sampler(slots)(logits, rows).token_ids.tolist()
    assert all(Sampler(slots)(logits, rows).token_ids.tolist() == first for _ in range(3))


def test_a_bad_row_ends_the_request_only_where_nothing_was_accepted():
    logits = torch.zeros(3, V)
    logits[:, 2] = 50.0
    logits[1, 0] = math.nan
    slots = slots_for({})
    out = Sampler(slots)(logits, Rows.drafted([0], [1], [[2, 2]]))
    assert (out.status.tolist(), out.num_tokens.tolist(), out.token_ids.tolist()) == ([OK], [1], [[2, -1, -1]])
    out = Sampler(slots)(logits[[1, 0, 2]], Rows.drafted([0], [1], [[2, 2]]))
    assert (out.status.tolist(), out.num_tokens.tolist()) == ([NAN], [0])


def test_case_13_the_law_at_every_depth():
    """Each emitted position, given that it was reached with this draft prefix accepted, has its target's law (greedy
    drafts)."""
    drafts = torch.tensor([0, 1]).expand(2**15, K)
    found = outcomes(2**15, "exact", "cpu", False, drafts=drafts)
    for depth in range(K + 1):
        reached = [said[depth] for said in found if len(said) > depth]
        law = {(i,): p for i, p in enumerate(TARGETS[depth])}
        assert p_value([(i,) for i in reached], law) > ALPHA


def test_ragged_drafts_of_many_requests_share_a_step():
    counts = [0, 3, 1, 4, 2]
    slots = Slots(5, WORDS)
    for i in range(5):
        slots.add(i, SamplingParams(top_k=5 + i), key=i, prompt=[1])
    logits = torch.randn(sum(counts) + 5, WORDS, generator=torch.Generator().manual_seed(4)) * 3
    rows = Rows.drafted(range(5), [9] * 5, [[2] * c for c in counts])
    together = Sampler(slots)(logits, rows)
    start = rows.start.tolist()
    for i in range(5):
        alone = Sampler(slots)(logits[start[i] : start[i + 1]], Rows.drafted([i], [9], [[2] * counts[i]]))
        count = int(alone.num_tokens[0])
        assert together.num_tokens[i] == count
        assert together.token_ids[i, :count].tolist() == alone.token_ids[0, :count].tolist()
