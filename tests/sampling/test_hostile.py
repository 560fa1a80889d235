"""Odd and hostile input: what one request asks, or what its logits and drafts are, is that request's error alone;
numbers at the ends of their ranges mean the same in every backend."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from sampling import test_backends
from sampling.test_backends import slots_for
from tailrace.kernels.rows import RULES
from tailrace.kernels.status import EMPTY, FAILED, NAN, OK, PROCESSOR
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, processors, verify

V = 5
INF = math.inf

# ---- verification of what is certain, impossible, or too small for a float

TARGETS = {
    "one": [-INF, 3.0, -INF, -INF, -INF],
    "sure": [0.0, 300.0, -300.0, 0.0, 0.0],
    "nearly": [0.0, 40.0, -1e38, 0.0, -INF],
    "two": [-INF, 2.0, 2.0, -INF, -INF],
    "all": [0.0, 0.5, 1.0, 1.5, 2.0],
}
PROPOSALS = {
    "draft": [0.0, 1.0, 0.0, 0.0, 0.0],
    "other": [0.0, 0.0, 0.0, 1.0, 0.0],
    "even": [0.2] * 5,
    "least": [1e-45, 1e-38, 1.0, 1e-45, 1e-45],
    "nearly": [0.0, 1.0 - 2**-24, 2**-24, 0.0, 0.0],
}


@pytest.mark.few(1)
@QUIET
@pytest.mark.parametrize(
    ("backend", "step"), [("cpu", 1), ("gpu", 101), pytest.param("gpu", 29, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("rule", RULES)
def test_verification_of_degenerate_distributions(rule, backend, step):
    """All pairs of targets × all pairs of proposals: 625 requests, the same tokens everywhere, and none that its row
    excludes. The reference is run each time, to compare with. On a GPU every so many of them, others for each rule."""
    cases = list(itertools.product(TARGETS, TARGETS, PROPOSALS, PROPOSALS))
    cases = cases[RULES.index(rule) * step // len(RULES) :: step]
    logits = torch.tensor([row for a, b, _, _ in cases for row in (TARGETS[a], TARGETS[b], TARGETS["all"])])
    q = torch.tensor([row for _, _, c, d in cases for row in (PROPOSALS[c], PROPOSALS[d], [0.0] * V)])
    slots = Slots(2, V)
    slots.add(0, SamplingParams(), key=3, prompt=[0])
    slots.add(1, SamplingParams(top_k=4, logprobs=1), key=3, prompt=[0])
    n = len(cases)
    drafts = [[1, 1 + i % 2] for i in range(n)]
    rows = Rows.drafted([i % 2 for i in range(n)], range(1, n + 1), drafts, [rule] * n, q)
    found, expected = (
        Sampler(slots, backend)(logits.to(DEVICES[backend]), rows),
        Sampler(slots, "reference")(logits, rows),
    )
    assert expected.status.tolist() == found.status.tolist() == [OK] * n
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    for i, (tokens, count) in enumerate(zip(found.token_ids.tolist(), found.num_tokens.tolist(), strict=True)):
        assert all(logits[3 * i + j, tokens[j]] > -INF for j in range(count)), cases[i]


def test_case_of_the_issue_a_peaked_row_that_falls_back_under_rule_block():
    slots = Slots(2, V)
    slots.add(0, SamplingParams(top_h=0.9), key=1, prompt=[0])
    slots.add(1, SamplingParams(), key=2, prompt=[0])
    logits = torch.tensor([TARGETS["nearly"]] * 4)
    q = torch.tensor([PROPOSALS["nearly"], [0.0] * V] * 2)
    out = Sampler(slots)(logits, Rows.drafted([0, 1], [1, 1], [[1], [1]], ["block"] * 2, q))
    assert (out.status.tolist(), out.num_tokens.tolist()) == ([OK, OK], [2, 2])


# ---- rows of which nothing is left

NORMALIZED = {
    f"normalize_logits {name}": fields | {"normalize_logits": True}
    for name, fields in test_backends.PARAMS.items()
    if "processors" not in fields
}
EMPTIED = test_backends.PARAMS | NORMALIZED


@pytest.mark.few(12)
@QUIET
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *itertools.product(EMPTIED, ["reference", "cpu"]),
        *(pytest.param(name, "gpu", marks=pytest.mark.long) for name in EMPTIED),
        *((name, "gpu") for name in ("greedy", "top_p", "normalize_logits top_p")),
    ],
)
def test_row_without_finite_logits_is_empty(name, backend):
    """Whether the model, the mask, or both together leave nothing; the neighbour's row is as ever."""
    vocab = 257
    slots = slots_for(EMPTIED[name], vocab, 4)
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(5))
    logits[1], logits[2, 5:] = -INF, -INF
    masks = torch.zeros(3, -(-vocab // 32), dtype=torch.int32)
    masks[1], masks[2, 1] = -1, -1  # all; 32 to 63
    rows = Rows.plain(range(4), range(4), [9] * 4, mask=[0, 1, 2, 1], masks=masks)
    out = Sampler(slots, backend)(logits.to(DEVICES[backend]), rows)
    assert out.status.tolist() == [EMPTY, EMPTY, EMPTY, OK]


# ---- one request fails alone


@pytest.mark.few(4)
@QUIET
@pytest.mark.parametrize(
    ("where", "backend"),
    [
        *itertools.product(["draw", "logprobs_of", "state"], ["reference", "cpu"]),
        ("draw", "gpu"),
        *(pytest.param(where, "gpu", marks=pytest.mark.long) for where in ("logprobs_of", "state")),
    ],
)
def test_whatever_the_reference_raises_is_its_requests_alone(where, backend, monkeypatch, caplog):
    """Also half-way through drafts: what was accepted before stands, and the slot is as it was."""
    slots = Slots(3, V)
    for i, fields in enumerate(
        ({}, {"normalize_logits": True, "logprobs": 1, "presence_penalty": 0.1}, {"top_p": 0.8})
    ):
        slots.add(i, SamplingParams(**fields), key=i, prompt=[0, 1])
    logits = torch.randn(9, V, generator=torch.Generator().manual_seed(1)).to(DEVICES[backend])
    alone = (
        Sampler(slots, "reference")(logits.cpu(), Rows.drafted(range(3), [2] * 3, [[]] * 3)).token_ids[:, 0].tolist()
    )
    rows = Rows.drafted(range(3), [2] * 3, [[alone[0], 1], [alone[1], 1], [alone[2], 1]], source=[0, 1, 2])
    before = Sampler(slots, backend)(logits, rows)
    calls = itertools.count()

    def failing(original, good: int):
        def call(*args):
            mine = any(arg is slots[1] for arg in args)
            if mine and next(calls) >= good:
                raise RuntimeError("no luck")
            return original(*args)

        return call

    history = list(slots[1].history.tokens)
    for good in (0, 1):
        calls = itertools.count()
        with monkeypatch.context() as patch:
            if where == "state":
                original = type(slots[1]).update_of
                patch.setattr(type(slots[1]), "update_of", failing(original, good))
            else:
                patch.setattr(
                    verify,
                    "report_logprobs" if where == "logprobs_of" else "choose_token",
                    failing(getattr(verify, "report_logprobs" if where == "logprobs_of" else "choose_token"), good),
                )
            out = Sampler(slots, backend)(logits, rows)
        assert out.status.tolist() == [OK, FAILED if good == 0 else OK, OK]
        assert out.num_tokens[1] == good
        assert out.token_ids[1].tolist() == [*before.token_ids[1, :good].tolist(), *[-1] * (3 - good)]
        assert out.token_ids[[0, 2]].tolist() == before.token_ids[[0, 2]].tolist()
        assert slots[1].history.tokens == history
        assert "no luck" in caplog.text
    assert Sampler(slots, backend)(logits, rows).token_ids.tolist() == before.token_ids.tolist()


class Panic(BaseException):
    """As one in Rust arrives."""


def raises(row, tokens):
    raise Panic("no")


def fills(row, tokens):
    row.fill_(0.0)
    row[4] = 60.0


def grows(row, tokens):
    row.resize_(row.numel() + 3).zero_()


def spoils(row, tokens, given):
    tokens.append(1)
    given.append(len(tokens))
    row.fill_(0.0)
    row[len(given)] = 50.0


RETURNS = {
    "nothing": fills,
    "another": lambda row, tokens: torch.zeros(V).index_fill(0, torch.tensor([4]), 60.0),
    "shape": lambda row, tokens: torch.zeros(V + 1),
    "scalar": lambda row, tokens: torch.tensor(1.0),
    "dtype": lambda row, tokens: torch.zeros(V, dtype=torch.float64),
    "device": lambda row, tokens: torch.zeros(V, device="meta"),
    "list": lambda row, tokens: [0.0] * V,
    "raises": raises,
    "grows": grows,
    "nan": lambda row, tokens: row * math.nan,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", RETURNS)
def test_processors_that_misbehave(kind, temperature, monkeypatch):
    """One that returns a row has it taken; any other mistake fails its own request; the logits stay as they are."""
    monkeypatch.setattr(processors, "REGISTERED", {"it": RETURNS[kind]})
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(1))
    kept = logits.clone()
    drawn = []
    for fields in ({}, {"processors": {"it": {}}}):
        slots = Slots(3, V)
        for i in range(3):
            slots.add(i, SamplingParams(temperature=temperature, **(fields if i == 1 else {})), key=i, prompt=[0])
        drawn.append(Sampler(slots)(logits, Rows.plain(range(3), range(3), [1] * 3)))
    plain, out = drawn
    assert out.token_ids[[0, 2]].tolist() == plain.token_ids[[0, 2]].tolist()
    if kind in ("nothing", "another"):
        assert (out.token_ids[1].tolist(), out.status.tolist()) == ([4], [OK] * 3)
    else:
        assert out.status.tolist() == [OK, NAN if kind == "nan" else PROCESSOR, OK]
    assert torch.equal(logits, kept)


def test_what_a_processor_is_given_is_its_own(monkeypatch):
    monkeypatch.setattr(processors, "REGISTERED", {"spoils": spoils})
    slots = Slots(1, V)
    arguments = {"given": [0]}
    slots.add(0, SamplingParams(temperature=0.0, processors={"spoils": arguments}), key=1, prompt=[0])
    for _ in range(3):
        assert Sampler(slots)(torch.zeros(1, V), Rows.plain([0], [0], [1])).token_ids.tolist() == [[2]]
    assert slots[0].history.tokens == [0]
    assert arguments == {"given": [0]}
