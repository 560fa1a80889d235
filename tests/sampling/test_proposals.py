"""Distributions of drafts given request by request, beside requests whose drafts are one-hot: the same as all in one
tensor."""

from __future__ import annotations

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from tailrace.kernels.rows import RULES
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots

V = 300
COUNTS = (3, 0, 1, 2, 3)
DENSE = (True, True, False, True, False)


def world():
    """Slots, logits, drafts, and of each request the distributions they were drawn from, or None."""
    rng = torch.Generator().manual_seed(4)
    logits = torch.randn(sum(COUNTS) + len(COUNTS), V, generator=rng) * 2
    slots, proposals, drafts, row = Slots(len(COUNTS), V), [], [], 0
    for i, count in enumerate(COUNTS):
        slots.add(i, SamplingParams(temperature=0.9, top_p=0.97 if i % 2 else 1.0, logprobs=2), key=i, prompt=[1])
        q = (logits[row : row + count] + torch.randn(count, V, generator=rng) * 0.4).softmax(1)
        drafts.append(torch.multinomial(q, 1, generator=rng)[:, 0].tolist() if count else [])
        proposals.append(q if DENSE[i] else None)
        row += count + 1
    return slots, logits, drafts, proposals


@pytest.mark.few(2)
@QUIET
@pytest.mark.parametrize(
    ("backend", "rule"),
    [
        *((backend, rule) for backend in ("cpu", "reference") for rule in RULES),
        *(
            pytest.param("gpu", rule, marks=pytest.mark.long) for rule in RULES
        ),  # drafting/test_proposals_on_gpu has some
    ],
)
def test_one_by_one_or_side_by_side(backend, rule):
    slots, logits, drafts, proposals = world()
    logits = logits.to(DEVICES[backend])
    sampler, n = Sampler(slots, backend), len(COUNTS)
    for position in (5, 6, 7) if backend != "gpu" else (5,):
        mixed = Rows.drafted(range(n), [position] * n, drafts, rule, proposals)
        got = sampler(logits, mixed)
        blank = torch.full((1, V), 1 / V)
        whole = torch.cat(
            [
                part
                for q, c in zip(proposals, COUNTS, strict=True)
                for part in (blank.expand(c, V) if q is None else q, blank)
            ]
        )
        for dense in (True, False):
            rows = Rows.drafted(range(n), [position] * n, drafts, rule, whole if dense else None)
            wanted = sampler(logits, rows)
            for i in range(n):
                if DENSE[i] == dense:
                    assert got.token_ids[i].tolist() == wanted.token_ids[i].tolist()
                    assert got.logprobs[i] == wanted.logprobs[i]
        assert [mixed.of(i).proposals for i in (2, 4)] == [None, None]
        alone = sampler(logits, mixed.of(3))
        assert alone.token_ids[0].tolist() == got.token_ids[3, : COUNTS[3] + 1].tolist()


def test_the_distributions_of_another_request_are_seen():
    slots, logits, drafts, proposals = world()
    n, found = len(COUNTS), set()
    for q in (proposals, [proposals[0].roll(1, 0), *proposals[1:]], [None, *proposals[1:]]):
        tokens = [
            Sampler(slots)(logits, Rows.drafted(range(n), [at] * n, drafts, "rejection", q)).token_ids[0].tolist()
            for at in range(40)
        ]
        found.add(repr(tokens))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda q: q[:-1], "proposals must be of 5 requests, got 4"),
        (lambda q: [q[0][:2], *q[1:]], r"proposals must be float32 \[3, V\]"),
        (lambda q: [q[0].double(), *q[1:]], r"proposals must be float32 \[3, V\]"),
        (lambda q: [*q[:3], q[3] * 0.9, None], "row 7 adds up to 0.8"),
        (lambda q: [q[0][:, :-1] / q[0][:, :-1].sum(1, True), *q[1:]], r"contiguous float32 \[3, 300\]"),
        (lambda q: [q[0].T.contiguous().T, *q[1:]], r"contiguous float32 \[3, 300\]"),
        (lambda q: [0.5, *q[1:]], "a tensor or a list of tensors"),
        (lambda q: 0.5, "a tensor or a list of tensors"),
    ],
)
def test_bad_input(spoil, message):
    slots, logits, drafts, proposals = world()
    n, spoilt = len(COUNTS), spoil(proposals)
    with pytest.raises(ValueError, match=message):
        Sampler(slots)(logits, Rows.drafted(range(n), [5] * n, drafts, "rejection", spoilt))
