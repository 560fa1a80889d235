"""The kernels against the reference, at sizes where their short cuts are taken: the same tokens, kept sets, logprobs,
entropies."""

from __future__ import annotations

import math

import pytest
import torch

from field_examples import uncovered
from kernels.backends import DEVICES, QUIET
from tailrace import _cpu, kernels
from tailrace.kernels.gpu.program import KEY
from tailrace.kernels.status import EMPTY, INF, NAN, OK
from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.backends import backend_of
from tailrace.sampling.backends.device_slots import DeviceSlots
from tailrace.sampling.pipeline import beyond_device
from tailrace.sampling.reference import compute_distribution, draw_token, edit_row

KEYS = (654, -400, 836, 2**62, 340)
HISTORY = [(i * i * 7919) % 4001 for i in range(400)]
PARAMS: dict[str, dict] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "temperature": {"temperature": 0.8},
    "cold": {"temperature": 1e-4},
    "frozen": {"temperature": 1e-45},
    "hot": {"temperature": 30.0},
    "min_p": {"min_p": 0.03, "temperature": 0.8},
    "min_p 1": {"min_p": 1.0},
    "top_k": {"top_k": 50},
    "top_k many": {"top_k": 3000},
    "top_k all": {"top_k": 10_000_000},
    "top_p": {"top_p": 0.9, "temperature": 0.7},
    "top_p most": {"top_p": 0.9999},
    "top_p nearly all": {"top_p": 1 - 1e-7},
    "top_p 0": {"top_p": 0.0},
    "top_k top_p": {"top_k": 40, "top_p": 0.8, "temperature": 0.6},
    "top_p before temperature": {"top_p": 0.8, "temperature": 0.6, "sampler_order": ("top_p", "temperature")},
    "min_p after top_p": {"top_p": 0.99, "min_p": 0.01, "sampler_order": ("top_p", "min_p")},
    "top_a": {"top_a": 0.3},
    "typical": {"typical_p": 0.6},
    "typical most": {"typical_p": 0.999},
    "epsilon": {"epsilon_cutoff": 1e-3},
    "eta": {"eta_cutoff": 3e-3},
    "p_less": {"p_less": True, "temperature": 0.8},
    "p_less_norm": {"p_less_norm": True, "temperature": 1.5},
    "p_less of what top_k left": {"top_k": 40, "p_less": True},
    "p_less first": {"p_less": True, "top_p": 0.9, "sampler_order": ("p_less",)},
    "top_n_sigma": {"top_n_sigma": 1.2, "temperature": 1.5},
    "top_n_sigma last": {"top_p": 0.95, "top_n_sigma": 2.1},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    "xtc coin": {"xtc_probability": 0.5, "xtc_threshold": 0.05, "min_p": 0.01},
    "dynatemp": {"dynatemp_range": 0.5},
    "smoothing": {"smoothing_factor": 0.2, "smoothing_curve": 1.5, "min_p": 0.001},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "penalties up": {"repetition_penalty": 0.7, "presence_penalty": -0.5, "top_k": 30},
    "penalties window": {"presence_penalty": 1.0, "penalty_last_n": 50, "top_p": 0.9},
    "bias": {"logit_bias": {3: 40.0, 4: -100.0, 11: 5.0}, "top_k": 5},
    "bias and penalties": {"logit_bias": {7: 9.0}, "repetition_penalty": 1.2, "min_p": 0.02},
    "allowed": {"allowed_token_ids": tuple(range(3, 200, 7))},
    "bad words": {"bad_words": tuple((i,) for i in range(0, 4000, 3)), "top_k": 20},
    "bans and penalties": {"bad_words": tuple((i,) for i in range(0, 4000, 2)), "presence_penalty": 0.9, "top_k": 20},
    "encoder penalty": {"encoder_repetition_penalty": 1.5, "top_k": 30},
    "encoder penalty and penalties": {"encoder_repetition_penalty": 0.8, "repetition_penalty": 1.2, "min_p": 0.01},
    "length decay": {"exponential_decay_length_penalty": (190, 1.3), "top_p": 0.9},
    "length decay down": {"exponential_decay_length_penalty": (190, 0.7), "top_k": 20},
    "length decay far": {"exponential_decay_length_penalty": (0, 1000.0)},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "tail-free": {"tfs_z": 0.9},
    "tail-free 0": {"tfs_z": 0.0},
    "tail-free most": {"tfs_z": 0.9999, "temperature": 0.7},
    "tail-free of a nucleus": {"tfs_z": 0.8, "top_p": 0.9},
    "tail-free first": {"tfs_z": 0.95, "top_p": 0.9, "sampler_order": ("tfs_z",)},
    "top-h": {"top_h": 0.5},
    "top-h 1": {"top_h": 1.0, "temperature": 1.5},
    "min-k": {"min_k": True, "temperature": 2.0},
    "min-k by range": {"min_k": True, "min_k_tau": 200.0},
    "min-k of a nucleus": {"min_k": True, "top_p": 0.9},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "repetition_penalty": 1.2},
    "mirostat 2 all": {"mirostat": 2, "mirostat_tau": 90.0, "temperature": 0.7},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 1 many": {"mirostat": 1, "mirostat_tau": 8.0},
    "adaptive": {"adaptive_target": 0.3},
    "adaptive of min_p": {"adaptive_target": 0.5, "min_p": 0.02},
    "adaptive and then": {
        "adaptive_target": 0.05,
        "top_k": 40,
        "top_n_sigma": 2.0,
        "min_p": 0.1,
        "sampler_order": ("top_k", "adaptive_p", "top_n_sigma", "min_p"),
    },
    "tournament": {"watermark": Watermark(kind="synthid", key=5, context=2)},
    "tournament of a nucleus": {"watermark": Watermark(kind="synthid", key=-5, context=1, depth=64), "top_p": 0.95},
    "tournament before temperature": {
        "watermark": Watermark(kind="synthid", key=5, depth=5),
        "temperature": 3.0,
        "sampler_order": ("synthid", "temperature"),
    },
    "tournament of transformers": {"watermark": Watermark(kind="synthid", scheme="transformers", keys=KEYS, context=3)},
    "tournament by an odd table": {
        "watermark": Watermark(
            kind="synthid", scheme="transformers", keys=KEYS * 9, context=3, sampling_table_size=1001
        ),
        "top_k": 50,
    },
    "everything": {
        "temperature": 0.9,
        "top_k": 200,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "logit_bias": {5: 3.0},
        "bad_words": ((9,),),
        "typical_p": 0.95,
    },
}
SIZES = (1, 2, 16, 255, 256, 257, 4097, 33_000)


def rows_of(vocab: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(vocab)
    normal = torch.randn(vocab, generator=rng)
    peaked = normal * 2.5
    peaked[torch.randint(0, vocab, (12,), generator=rng)] += 14.0
    holes = normal * 3
    holes[torch.rand(vocab, generator=rng) < 0.7] = float("-inf")
    holes[vocab // 2] = 1.0
    return {
        "normal": normal,
        "peaked": peaked,
        "flat": torch.full((vocab,), 3.25),
        "two values": (torch.rand(vocab, generator=rng) < 0.1).float() * 2.0,
        "steps": (normal * 2).round() / 2,
        "holes": holes,
        "one": torch.where(torch.arange(vocab) == vocab - 1, 5.0, float("-inf")),
        "far": normal * 1e4,
        "offset": normal + 1e4,
        "ascending": torch.arange(vocab) / 100.0,
    }


def sampled(slots: Slots, logits: torch.Tensor, backend: str, position: int = 9):
    n = logits.shape[0]
    return Sampler(slots, backend)(logits, Rows.plain(range(n), range(n), [position] * n))


def slots_for(fields: dict, vocab: int, n: int, **more) -> Slots:
    slots = Slots(n, vocab)
    prune = dict(fields)
    if "logit_bias" in prune:
        prune["logit_bias"] = {i: b for i, b in prune["logit_bias"].items() if i < vocab}
    for name in ("allowed_token_ids",):
        if name in prune:
            prune[name] = tuple(i for i in prune[name] if i < vocab) or (0,)
    if "bad_words" in prune:
        prune["bad_words"] = tuple(w for w in prune["bad_words"] if w[0] < vocab)
    history = [i % vocab for i in HISTORY]
    try:
        params = SamplingParams(**prune, **more)
    except ValueError:
        pytest.skip("not for so small a vocabulary")
    for slot in range(n):
        slots.add(
            slot, params, key=slot * 7919 + 5, prompt=history[:200], output=history[200:], eos_token_ids=[vocab - 1]
        )
    return slots


def meets(name: str, vocab: int) -> bool:
    """Whether the method meets this size in `make test`: each 257 ids and one other, not that of the method before."""
    return vocab in (257, [size for size in SIZES if size != 257][list(PARAMS).index(name) % 7])


@pytest.mark.few(90)
@pytest.mark.parametrize(
    ("name", "vocab"),
    [
        pytest.param(name, vocab, marks=[] if meets(name, vocab) else pytest.mark.long)
        for name in PARAMS
        for vocab in SIZES
    ],
)
def test_the_same_tokens(name, vocab):
    logits = torch.stack(list(rows_of(vocab).values()))
    logits = torch.cat([logits] * (3 if vocab < 10_000 else 1))
    slots = slots_for(PARAMS[name], vocab, logits.shape[0])
    kernel, learnt = sampled(slots, logits, "cpu"), lessons(slots)
    reference = sampled(slots, logits, "reference")
    assert kernel.status.tolist() == reference.status.tolist()
    differ = (kernel.token_ids != reference.token_ids).flatten().nonzero().flatten().tolist()
    assert all(tied(slots, logits[i], i, kernel.token_ids[i, 0], reference.token_ids[i, 0]) for i in differ), differ
    assert len(differ) <= 2
    for i, (mine, theirs) in enumerate(zip(learnt, lessons(slots), strict=True)):
        assert mine == pytest.approx(theirs, abs=1e-5, nan_ok=True) or i in differ


def lessons(slots: Slots) -> list[list[float]]:
    """Slot by slot, what is learnt from if the tokens stand."""
    return [[math.nan if logprob is None else logprob for _, logprob in slot.updates] for slot in slots.slots if slot]


# edits that a GPU has no tables for, and stages that it has no kernels for: they go apart
FALLING_BACK = {name for name in PARAMS if name.startswith(("encoder penalty", "length decay"))}
GPU = torch.device("cuda")
PARAMS |= uncovered(PARAMS)
REFINED = {name: {of: value for of, value in fields.items() if of != "bad_words"} for name, fields in PARAMS.items()}
FALLING_BACK |= {name for name, fields in REFINED.items() if beyond_device(SamplingParams(**fields), GPU)}
ON_GPU = [name for name in PARAMS if name not in FALLING_BACK]
AT_LENGTH = ("temperature", "top_k many", "top_p most", "typical", "everything")
ALL = range(10)  # kinds of rows


def few(count: int, name: str) -> list[int]:
    """So many of the ten kinds of rows, others for each name: every kind meets several methods."""
    return [(list(PARAMS).index(name) + 3 * i) % len(ALL) for i in range(count)]


@pytest.mark.few(26)
@QUIET
@pytest.mark.parametrize(
    ("name", "vocab", "kinds"),
    [
        *(pytest.param(name, 257, few(1, name), id=f"{name}-257") for name in ON_GPU),
        *(pytest.param(name, 4097, few(1, name), id=f"{name}-4097") for name in AT_LENGTH),
        *(
            pytest.param(name, vocab, ALL, marks=pytest.mark.long, id=f"{name}-{vocab}-all")
            for vocab in (1, 2, 255, 256, 257, 4097, 33_000)
            for name in ON_GPU
        ),
    ],
)
def test_the_same_tokens_on_a_gpu(name, vocab, kinds, monkeypatch):
    """Without one, in Triton's interpreter; there by nobody else's help."""
    monkeypatch.setattr(DeviceSlots, "falling_back", lambda *_: [])
    logits = torch.stack(list(rows_of(vocab).values()))[list(kinds)]
    slots = slots_for(PARAMS[name], vocab, logits.shape[0])
    dtype = torch.bfloat16 if name in ("top_p", "top_k", "temperature") else torch.float32
    expected = sampled(slots, logits.to(dtype), "cpu")
    found = sampled(slots, logits.to(DEVICES["gpu"], dtype), "gpu")
    assert found.status.tolist() == expected.status.tolist()
    assert found.num_tokens.tolist() == expected.num_tokens.tolist()
    differ = (found.token_ids != expected.token_ids).flatten().nonzero().flatten().tolist()
    assert all(
        tied(slots, logits[i].to(dtype).float(), i, found.token_ids[i, 0], expected.token_ids[i, 0]) for i in differ
    ), differ
    assert len(differ) <= 1


def test_what_the_gpu_does_not_have_goes_apart_and_leaves_its_neighbours_alone():
    vocab = 300
    logits = torch.stack([rows_of(vocab)["peaked"]] * 4)
    logits[2, 5] = float("nan")
    slots = Slots(4, vocab)
    for slot, fields in enumerate(({"top_p": 0.9}, {"logit_bias": {3: 50.0}}, {}, {"min_p": 0.1, "logprobs": 2})):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[1, 2])
    expected = sampled(slots, logits, "cpu")
    found = sampled(slots, logits.to(DEVICES["gpu"]), "gpu")
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.status.tolist() == expected.status.tolist() == [OK, OK, NAN, OK]
    assert [entry is None for entry in found.logprobs] == [True, True, True, False]
    sampler = Sampler(slots, "gpu")
    alone = Rows.plain([2] * 6, [0] * 6, range(6))
    flat = rows_of(vocab)["normal"][None]  # another key draws other tokens
    first = sampler(flat.to(DEVICES["gpu"]), alone).token_ids
    assert torch.equal(first, Sampler(slots, "cpu")(flat, alone).token_ids)
    sampler.backend_for(torch.device(DEVICES["gpu"])).there.state.tables.records[:, KEY.value] += 1  # the planted fault
    assert not torch.equal(first, sampler(flat.to(DEVICES["gpu"]), alone).token_ids)
    slots.remove(0)
    slots.add(0, SamplingParams(temperature=0.0), key=1, prompt=[1])  # another request in the same slot
    assert int(sampled(slots, logits.to(DEVICES["gpu"]), "gpu").token_ids[0, 0]) == int(logits[0].argmax())


@pytest.mark.few(4)
@QUIET
@pytest.mark.parametrize("name", sorted(FALLING_BACK))
def test_what_the_gpu_does_not_have_falls_back(name):
    logits = torch.stack(list(rows_of(257).values()))
    slots = slots_for(PARAMS[name], 257, logits.shape[0])
    n = logits.shape[0]
    assert backend_of(slots, "gpu", torch.device("cpu")).falling_back(Rows.plain(range(n), range(n), [9] * n)) == list(
        range(n)
    )
    expected, found = sampled(slots, logits, "reference"), sampled(slots, logits.to(DEVICES["gpu"]), "gpu")
    assert found.token_ids.tolist() == expected.token_ids.tolist()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@QUIET
def test_the_other_threshold_of_p_less_is_seen(backend):
    """The planted fault: the kernels have p_less_norm where p_less was asked for."""
    logits = torch.stack(list(rows_of(257).values()))[:2]
    logits = logits.repeat(8, 1)
    slots = slots_for({"p_less": True}, 257, logits.shape[0])
    expected = sampled(slots, logits, "reference").token_ids
    assert torch.equal(sampled(slots, logits.to(DEVICES[backend]), backend).token_ids, expected)
    other = slots_for({"p_less_norm": True}, 257, logits.shape[0])
    for slot in range(logits.shape[0]):
        other.slots[slot].params = slots.slots[slot].params  # what the reference would look at
    assert not torch.equal(sampled(other, logits.to(DEVICES[backend]), backend).token_ids, expected)


def tied(slots: Slots, row: torch.Tensor, i: int, a: int, b: int) -> bool:
    """Whether rounding explains that one backend took a, the other b: scores within 1e-4, or one is at the edge of the
    kept set."""
    candidates = compute_distribution(row, slots[i], 9)
    scores = candidates.logits + kernels.gumbel(slots[i].key, 9, candidates.ids, 0)
    found = {int(t): float(s) for t, s in zip(candidates.ids, scores, strict=True)}
    if int(a) in found and int(b) in found:
        return abs(found[int(a)] - found[int(b)]) < 1e-4
    # of so many, the last ones weigh less than float32 sums can tell: the one that was not kept is next to those that
    # were
    changed = edit_row(row, slots[i])
    kept = changed[candidates.ids]
    missing = float(changed[int(b) if int(a) in found else int(a)])
    edge = min(abs(missing - float(kept.min())), abs(missing - float(kept.max())))
    return candidates.ids.numel() > 1000 and edge < 1e-4 * (1 + abs(missing))


CROWDS: dict[str, dict] = {
    "top_p 0.05": {"top_p": 0.05},
    "top_p 0.5": {"top_p": 0.5, "temperature": 1.3},
    "top_p 0.9": {"top_p": 0.9, "temperature": 0.8},
    "top_p 0.999": {"top_p": 0.999},
    "top_p 1 - 1e-7": {"top_p": 1 - 1e-7},
    "typical 0.2": {"typical_p": 0.2},
    "typical 0.9": {"typical_p": 0.9, "temperature": 1.1},
    "typical 0.9999": {"typical_p": 0.9999},
    "penalties": {"top_p": 0.9, "presence_penalty": 1.0, "repetition_penalty": 1.1},
    "bias": {"top_p": 0.8, "logit_bias": {5: 2.0, 7: -3.0, 40_000: 1.0}},
    "bans": {"typical_p": 0.9, "bad_words": tuple((i,) for i in range(0, 49_000, 2))},
}


CROWD_ROWS = {
    "constant": lambda x: x * 0.0,
    "narrow": lambda x: x * 0.3,
    "normal": lambda x: x,
    "wide": lambda x: x * 1.4,
    "far": lambda x: x + 2.0**20,
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "least": lambda x: torch.where(x > 0, x, torch.finfo(torch.float32).min),
    "by frequency": lambda x: x.sort(descending=True).values,
}


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[] if (i + j) % 3 == 0 else pytest.mark.long)
        for i, name in enumerate(CROWDS)
        for j, kind in enumerate(CROWD_ROWS)
    ],
)
def test_crowds(name, kind):
    """Rows so flat that csrc/sample/flat_rows.cpp draws without collecting candidates; 48 keys on one row."""
    vocab, n = 49_152, 48
    row = CROWD_ROWS[kind](torch.randn(vocab, generator=torch.Generator().manual_seed(3)))
    before = _cpu.flat_draws()
    logits = row[None].expand(n, vocab)
    slots = slots_for(CROWDS[name], vocab, n)
    kernel, candidates = (
        sampled(slots, logits, "cpu"),
        compute_distribution(row.float(), slots[0]),
    )  # of every row: only keys differ
    reference = [draw_token(candidates, slots[i], 9) for i in range(n)]
    assert sampled(slots, logits[:2], "reference").token_ids.flatten().tolist() == reference[:2]
    if kind in ("narrow", "normal", "half", "bfloat16") and name in ("top_p 0.5", "typical 0.9", "bans"):
        assert _cpu.flat_draws() - before > n / 2
    assert kernel.status.tolist() == [OK] * n
    drawn = kernel.token_ids.flatten().tolist()
    differ = [i for i in range(n) if drawn[i] != reference[i]]
    assert all(tied(slots, row.float(), i, drawn[i], reference[i]) for i in differ), differ
    assert len(differ) <= 2


@pytest.mark.few(16)
@pytest.mark.parametrize("name", [*PARAMS, *CROWDS])
def test_the_same_bits_with_and_without_avx512(name):
    """The hand-written AVX-512 and the portable loops; on a machine without it both are the same."""
    found = []
    for wanted in (True, False):
        _cpu.want_avx512(wanted)
        try:
            for vocab in (257, 33_000):
                logits = torch.stack(list(rows_of(vocab).values()))
                slots = slots_for((PARAMS | CROWDS)[name], vocab, logits.shape[0], logprobs=3)
                out = sampled(slots, logits, "cpu")
                found.append((out.token_ids.tolist(), out.status.tolist(), repr(out.logprobs)))
        finally:
            _cpu.want_avx512(True)
    assert found[:2] == found[2:]


REPORTED = (
    "greedy",
    "plain",
    "temperature",
    "top_k",
    "top_p",
    "penalties",
    "allowed",
    "everything",
    "xtc",
    "bias",
    "tail-free",
    "mirostat 2",
    "adaptive of min_p",
    "tournament",
)
MODES = ("raw", "processed")
RAW = ("greedy", "temperature", "allowed")


@pytest.mark.few(14)
@QUIET
@pytest.mark.parametrize(
    ("name", "mode", "backend", "vocab", "kinds"),
    [
        *((name, mode, "cpu", vocab, 9) for name in REPORTED for mode in MODES for vocab in (16, 257, 4097)),
        # processed ones show whom the method keeps; raw ones do not depend on it
        *((name, MODES[name not in RAW], "gpu", 257, 2) for name in REPORTED),
        *(
            pytest.param(name, mode, "gpu", vocab, 9, marks=pytest.mark.long)
            for name in REPORTED
            for mode in MODES
            for vocab in (16, 257, 4097)
        ),
    ],
)
def test_the_same_reports(name, vocab, mode, backend, kinds):
    every = [row for kind, row in rows_of(vocab).items() if kind != "far"]
    logits = torch.stack([every[(list(PARAMS).index(name) + 4 * i + (mode == "raw")) % 9] for i in range(kinds)])
    slots = slots_for(
        PARAMS[name], vocab, logits.shape[0], logprobs=min(20, vocab), logprobs_mode=mode, report_entropy=True
    )
    kernel, reference = sampled(slots, logits.to(DEVICES[backend]), backend), sampled(slots, logits, "reference")
    for i in range(logits.shape[0]):
        if kernel.token_ids[i, 0] != reference.token_ids[i, 0]:
            assert tied(slots, logits[i], i, kernel.token_ids[i, 0], reference.token_ids[i, 0])
            continue
        if kernel.status[i] != OK:
            continue
        mine, theirs = kernel.logprobs[i][0], reference.logprobs[i][0]
        assert mine.top_ids == theirs.top_ids
        assert mine.rank == theirs.rank
        assert mine.logprob == pytest.approx(theirs.logprob, abs=2e-5)
        assert mine.top_logprobs == pytest.approx(theirs.top_logprobs, abs=2e-5)
        assert mine.entropy == pytest.approx(theirs.entropy, abs=1e-4)
        assert mine.varentropy == pytest.approx(theirs.varentropy, rel=1e-3, abs=1e-3)


@pytest.mark.few(30)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", PARAMS)
def test_the_container_and_its_strides_do_not_matter(name, dtype):
    vocab = 4097
    logits = torch.stack([row for kind, row in rows_of(vocab).items() if kind not in ("far", "offset")]).to(dtype)
    slots = slots_for(PARAMS[name], vocab, logits.shape[0])
    wide = torch.full((logits.shape[0], vocab + 37), 9e3, dtype=dtype)
    wide[:, 5 : vocab + 5] = logits
    before = wide.clone()
    expected = sampled(slots, logits.float(), "cpu")
    got = sampled(slots, wide[:, 5 : vocab + 5], "cpu")
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(wide, before)


@pytest.mark.few(15)
@pytest.mark.parametrize("name", PARAMS)
def test_threads_order_and_company_do_not_matter(name):
    vocab = 4097
    logits = torch.cat([torch.stack(list(rows_of(vocab).values()))] * 3)
    n = logits.shape[0]
    slots = slots_for(PARAMS[name], vocab, n, logprobs=3)
    threads = torch.get_num_threads()
    try:
        kernels.set_num_threads(1)
        alone = [Sampler(slots)(logits, Rows.plain([i], [i], [9])) for i in range(n)]
        kernels.set_num_threads(3)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(1)).tolist()
        together = Sampler(slots)(logits, Rows.plain(order, order, [9] * n))
    finally:
        kernels.set_num_threads(threads)
    for place, i in enumerate(order):
        assert together.token_ids[place, 0] == alone[i].token_ids[0, 0]
        assert together.logprobs[place] == alone[i].logprobs[0]


def test_bad_rows_are_flagged_in_every_shape_of_request():
    vocab = 1000
    good = torch.randn(vocab, generator=torch.Generator().manual_seed(3))
    bad = {EMPTY: float("-inf"), NAN: float("nan"), INF: float("inf")}
    for fields in PARAMS.values():
        for status, value in bad.items():
            row = good.clone()
            if status == EMPTY:
                row.fill_(value)
            else:
                row[731] = value
            slots = slots_for(fields, vocab, 3)
            out = sampled(slots, torch.stack([good, row, good]), "cpu")
            assert out.status.tolist() == [OK, status, OK]
            assert out.token_ids[1, 0] == -1
            assert out.num_tokens.tolist() == [1, 0, 1]
            assert out.token_ids[0, 0] == sampled(slots, torch.stack([good] * 3), "cpu").token_ids[0, 0]


def test_nan_and_inf_together_are_nan_and_a_banned_nan_is_one_too():
    row = torch.zeros(600)
    row[5], row[500] = float("inf"), float("nan")
    for fields in ({}, {"bad_words": ((500,),), "top_k": 3}, {"allowed_token_ids": (1, 2)}, {"temperature": 0.0}):
        slots = slots_for(fields, 600, 1)
        assert sampled(slots, row[None], "cpu").status.tolist() == [NAN]
        assert sampled(slots, row[None], "reference").status.tolist() == [NAN]
