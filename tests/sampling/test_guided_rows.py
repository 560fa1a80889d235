"""Rows that are combined with their companions while they are read: they say what rows say that were combined before
(test_guidance has that law), and nobody beside them notices."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from sampling.test_backends import PARAMS, rows_of, slots_for
from tailrace.kernels.rows import RULES
from tailrace.sampling import Guidance, Rows, Sampler, SamplingParams, Slots
from tailrace.sampling.guidance import combine_rows

INF = math.inf
SCALES = (1.5, 0.0, 1.0, 0.3, 7.0, 1.0001, 40.0, 2.0)
OTHERS = ["greedy", "temperature", "top_k top_p", "typical", "penalties", "everything"]  # where each row takes long


def pairs(vocab: int, dtype: torch.dtype) -> torch.Tensor:
    """[2n, V]: rows and, behind them, their companions; among them some that are −inf, +inf or NaN in one of the
    two."""
    rows = torch.stack([row for kind, row in rows_of(vocab).items() if kind != "far"])
    n = rows.shape[0]
    logits = torch.cat([rows, rows.roll(1, 0).flip(1) * 0.9])
    logits[2, ::3] = -INF
    logits[n + 3, ::4] = -INF
    logits[4, vocab // 2], logits[n + 5, vocab // 3], logits[6, vocab // 5] = math.nan, math.nan, INF
    return logits.to(dtype)


def guided(n: int) -> Guidance:
    """The third row has a companion of its own, the fourth none, and all have another scale."""
    companion = [n + i for i in range(n)]
    companion[2], companion[3] = 2, -1
    return Guidance.of(companion, [SCALES[i % len(SCALES)] for i in range(n)])


def the_same(slots: Slots, backend: str, logits: torch.Tensor, rows: Rows) -> None:
    got = Sampler(slots, backend)(logits.to(DEVICES[backend]), rows)
    ready, plain = combine_rows(logits, rows)
    assert plain.guidance is None
    wanted = Sampler(slots, backend)(ready.to(DEVICES[backend]), plain)
    assert torch.equal(got.token_ids, wanted.token_ids)
    assert torch.equal(got.status, wanted.status)
    assert repr(got.logprobs) == repr(wanted.logprobs)  # NaN is NaN
    unguided = Sampler(slots, backend)(logits.to(DEVICES[backend]), Rows.plain(rows.slot, rows.source, rows.position))
    if rows.width == 1 and logits.shape[1] > 2:
        assert unguided.logprobs != wanted.logprobs or not torch.equal(unguided.token_ids, wanted.token_ids)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.few(40)
@QUIET
@pytest.mark.parametrize(
    ("backend", "name", "vocab", "dtype"),
    [
        *(("cpu", name, vocab, dtype) for name in PARAMS for vocab in (257, 4097) for dtype in DTYPES),
        *(("reference", name, 257, dtype) for name in OTHERS for dtype in DTYPES),
    ],
)
def test_combined_while_read_or_before(backend, name, vocab, dtype):
    logits = pairs(vocab, dtype)
    n = logits.shape[0] // 2
    slots = slots_for(PARAMS[name], vocab, n, logprobs=4, report_entropy=True)
    the_same(slots, backend, logits, Rows.plain(range(n), range(n), [9] * n, guidance=guided(n)))


@pytest.mark.few(1)
@QUIET
@pytest.mark.parametrize(
    ("name", "dtype", "some"),
    [
        ("top_k top_p", torch.float32, [0, 2, 4]),
        ("penalties", torch.bfloat16, [1, 3, 6]),
        *(
            pytest.param(name, dtype, range(9), marks=pytest.mark.long)
            for name in ("top_k top_p", "penalties")
            for dtype in DTYPES
        ),
    ],
)
def test_combined_while_read_or_before_on_a_gpu(name, dtype, some):
    """some: the rows that are drawn from. Alone they are what they are in the whole batch."""
    logits = pairs(257, dtype)
    n = logits.shape[0] // 2
    slots = slots_for(PARAMS[name], 257, n, logprobs=4, report_entropy=True)
    every = guided(n)
    guidance = Guidance(every.companion[list(some)], every.scale[list(some)])
    the_same(slots, "gpu", logits, Rows.plain(some, some, [9] * len(some), guidance=guidance))


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_named_and_processed_logprobs_and_those_who_ask_for_what_no_kernel_has(backend, mode):
    logits = pairs(257, torch.bfloat16)
    n = logits.shape[0] // 2
    slots = Slots(n, 257)
    for i in range(n):
        rare = {"mirostat": 2} if i % 2 else {"temperature": 0.7}
        params = SamplingParams(**rare, logprobs=0, logprob_token_ids=(3, 200), logprobs_mode=mode)
        slots.add(i, params, key=i, prompt=[1])
    the_same(slots, backend, logits, Rows.plain(range(n), range(n), [9] * n, guidance=guided(n)))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_drafts_and_masks(backend, rule, dense):
    vocab, requests, drafts = 600, 6, 3
    rng = torch.Generator().manual_seed(3)
    count = requests * (drafts + 1)
    logits = torch.randn(2 * count, vocab, generator=rng) * 2
    proposals = (torch.randn(count, vocab, generator=rng) * 2).softmax(1) if dense else None
    likely = (1.7 * logits[:count] - 0.7 * logits[count:]).argmax(1).tolist()
    slots = Slots(requests, vocab)
    for i in range(requests):
        penalty = {"presence_penalty": 0.3} if i % 2 else {}
        slots.add(i, SamplingParams(temperature=0.7, top_p=0.95, logprobs=2, **penalty), key=i, prompt=[1, 2])
    masks = torch.full((2, -(-vocab // 32)), -1, dtype=torch.int32)
    masks[1, 3:9] = 0
    rows = Rows.drafted(
        range(requests),
        [2] * requests,
        [likely[i * 4 : i * 4 + drafts] for i in range(requests)],
        rule,
        proposals,
        mask=[i % 3 - 1 for i in range(count)],
        masks=masks,
        guidance=Guidance.of(range(count, 2 * count), [1.7] * count),
    )
    the_same(slots, backend, logits, rows)
    one = rows.of(4)
    assert one.guidance is not None
    assert one.guidance.companion.tolist() == [count + 16 + j for j in range(drafts + 1)]


def test_a_neighbour_does_not_notice():
    logits = pairs(4097, torch.bfloat16)
    n = logits.shape[0] // 2
    slots = slots_for(PARAMS["top_k top_p"], 4097, n, logprobs=2)
    alone = Sampler(slots)(logits, Rows.plain(range(n), range(n), [9] * n))
    guidance = Guidance.of([n + i if i % 2 else -1 for i in range(n)], [3.0 if i % 2 else math.nan for i in range(n)])
    beside = Sampler(slots)(logits, Rows.plain(range(n), range(n), [9] * n, guidance=guidance))
    for i in range(0, n, 2):
        assert torch.equal(alone.token_ids[i], beside.token_ids[i])
        assert alone.logprobs[i] == beside.logprobs[i]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Guidance.of([2, 3], [1.5]), "scale must hold 2 numbers"),
        (lambda: Guidance.of([2, 3], ["a", 1.0]), "scale must hold 2 numbers"),
        (lambda: Guidance.of([2, 3], [True, 1.0]), "scale must hold 2 numbers: a truth value is none"),
        (lambda: Guidance.of([2, 0.5], [1.5, 1.5]), "companion must hold 2 whole numbers"),
        (lambda: Guidance(torch.zeros(2), torch.ones(2)), r"companion must be contiguous int64 \[n\]"),
        (lambda: Guidance(torch.zeros(2, dtype=torch.int64), torch.ones(2).double()), r"contiguous float32 \[n\]"),
        (lambda: Guidance.of([2, 4], [1.5, 1.5]), "companion must be in -1 … 3, got 4"),
        (lambda: Guidance.of([2, -2], [1.5, 1.5]), "companion must be in -1 … 3, got -2"),
        (lambda: Guidance.of([2, 3], [1.5, -0.1]), "scale must be finite and at least 0"),
        (lambda: Guidance.of([2, 3], [1.5, math.nan]), "scale must be finite and at least 0"),
        (lambda: Guidance.of([2, 3], [1.5, INF]), "scale must be finite and at least 0"),
        (lambda: Guidance.of([2], [1.5]), "companion and scale must have 2 entries"),
        (lambda: {"companion": [2, 3]}, "guidance must be a Guidance"),
    ],
)
def test_bad_input(make, message):
    slots = Slots(2, 9)
    for i in range(2):
        slots.add(i, SamplingParams(), key=i, prompt=[1])
    with pytest.raises(ValueError, match=message):
        Sampler(slots)(torch.zeros(4, 9), Rows.plain([0, 1], [0, 1], [5, 5], guidance=make()))
