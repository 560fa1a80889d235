"""Kernels against reference on mixed steps with drafts: every knob, every rule, ragged drafts, masks, bans and forced
tokens at once.

The same tokens, statuses and reports. That all requests but the rare ones are really the kernels' is checked with it.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from tailrace.kernels.constants import FALLS_BACK
from tailrace.kernels.cpu.sample import CPUStep
from tailrace.kernels.rows import RULES, Rows
from tailrace.kernels.status import EMPTY, OK
from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling import Sampler, Slots
from tailrace.sampling.backends import BackendName, backend_of
from tailrace.sampling.backends.device_slots import DeviceSlots
from tailrace.sampling.backends.draft_programs import write_draft_programs
from tailrace.sampling.sequence_state import SequenceState

V = 700
PARAMS: dict[str, dict] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "greedy penalties": {"temperature": 0.0, "frequency_penalty": 0.8, "bad_words": ((3, 4), (5,))},
    "temperature": {"temperature": 0.7},
    "nucleus": {"temperature": 0.8, "top_p": 0.95},
    "top-k": {"top_k": 7, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.2, "top_p": 0.9},
    "window": {"presence_penalty": 1.5, "repetition_penalty": 1.2, "penalty_last_n": 4},
    "window of nothing": {"presence_penalty": 1.5, "penalty_last_n": 0, "dry_multiplier": 1.0},
    "window and dry": {"frequency_penalty": 0.7, "penalty_last_n": 9, "dry_multiplier": 2.0, "dry_allowed_length": 1},
    "bad words": {"bad_words": ((3, 4), (9,), (1, 2, 3)), "top_k": 30},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": (1, 2, 3)},
    "ngrams": {"no_repeat_ngram_size": 2},
    "sequence bias": {"sequence_bias": (((1, 2), 4.0), ((7,), 2.0)), "logit_bias": {11: 3.0}},
    "banned": {"banned_strings": ("x",), "top_p": 0.9},
    "forced": {"forced_token_ids": (4, 5, 6, 7, 8)},
    "green": {"watermark": Watermark(kind="kgw", key=5, context=2)},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.02, "min_p": 0.005},
    "typical_p": {"typical_p": 0.8, "presence_penalty": 0.3},
    "everything": {
        "temperature": 0.9,
        "top_k": 100,
        "top_p": 0.97,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "penalty_last_n": 20,
        "dry_multiplier": 0.8,
        "bad_words": ((2, 3), (8,)),
        "min_tokens": 7,
        "stop_token_ids": (5,),
        "no_repeat_ngram_size": 3,
        "logit_bias": {4: 2.0},
        "sequence_bias": (((1, 2), 4.0),),
    },
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "mirostat and a window": {
        "mirostat": 2,
        "mirostat_tau": 2.0,
        "mirostat_eta": 0.7,
        "presence_penalty": 0.5,
        "penalty_last_n": 5,
    },
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 2.0},
    "adaptive": {"adaptive_target": 0.3},
    "adaptive of min-p": {"adaptive_target": 0.5, "adaptive_decay": 0.3, "min_p": 0.01, "bad_words": ((3, 4),)},
    "tail-free": {"tfs_z": 0.9},
    "top-h": {"top_h": 0.6},
    "min-k": {"min_k": True, "temperature": 2.0},
    "synthid": {"watermark": Watermark(kind="synthid", key=5, context=1, depth=9), "presence_penalty": 0.2},
    "synthid and ngrams": {
        "watermark": Watermark(kind="synthid", key=5, context=2),
        "no_repeat_ngram_size": 3,
        "top_p": 0.95,
    },
    "synthid of transformers": {
        "watermark": Watermark(kind="synthid", scheme="transformers", keys=(5, 6, 7), context=2)
    },
}
RARE: dict[str, dict] = {
    "normalised": {"normalize_logits": True, "repetition_penalty": 1.3},
    "normalised, mirostat": {"normalize_logits": True, "mirostat": 2, "mirostat_tau": 3.0},
}


# whose drafts are no one else's business on a GPU
ON_GPU = ("plain", "greedy", "temperature", "nucleus", "top-k", "penalties", "xtc", "typical_p")


def world(seed: int, asked: list[dict]) -> tuple[Slots, torch.Tensor, Rows]:
    """One slot for each of `asked`, with random histories, logits, drafts (half of them likely), rules, proposals and
    masks."""
    rng = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    slots = Slots(len(asked), V)
    drafts, positions = [], []
    for i, fields in enumerate(asked):
        prompt, output = [[rng.randrange(12) for _ in range(rng.randrange(1, 20))] for _ in range(2)]
        output = [] if "forced_token_ids" in fields else output
        report = {"logprobs": 2, "logprobs_mode": rng.choice(["raw", "processed"])} if rng.random() < 0.4 else {}
        slots.add(
            i,
            SamplingParams(**fields, **report),
            key=seed * 100 + i,
            prompt=prompt,
            output=output,
            eos_token_ids=[0],
            handled_by_caller=("banned_strings",),
        )
        if "banned_strings" in fields:
            slots.ban(i, rng.randrange(12))
            slots[i].banned[slots[i].num_output + 1] = {2, 3}
        if rng.random() < 0.2:
            slots[i].sequence_state.force(slots[i].num_output + rng.randrange(5), [rng.randrange(12)])
            slots.refresh_edits(i)
        drafts.append([rng.randrange(12) for _ in range(rng.randrange(5))])
        positions.append(len(prompt) + len(output))
    count = sum(map(len, drafts)) + len(drafts)
    logits = torch.randn(count, V, generator=noise) * 1.5
    logits[:, :12] += 3.0
    flat = [token for d in drafts for token in (*d, 0)]
    liked = torch.rand(count, generator=noise) < 0.6
    logits[torch.arange(count), flat] += torch.where(liked, 7.0, 0.0)
    proposals = (logits + torch.randn(count, V, generator=noise) * 0.5).softmax(1) if rng.random() < 0.6 else None
    masks = torch.randint(-(2**31), 2**31, (5, -(-V // 32)), generator=noise, dtype=torch.int64).to(torch.int32)
    masks[:3, 0] |= 0xFFF
    masks[4] = 0  # nothing is allowed
    mask = [rng.choice([-1, -1, 0, 1, 2, 3, 3 if rng.random() < 0.9 else 4]) for _ in range(count)]
    rules = [rng.choice(RULES) for _ in asked]
    rows = Rows.drafted(range(len(asked)), positions, drafts, rules, proposals, mask=mask, masks=masks)
    return slots, logits, rows


def compare(
    slots: Slots, logits: torch.Tensor, rows: Rows, other: Rows | None = None, backend: BackendName = "cpu"
) -> int:
    """Raise AssertionError unless both say the same; how many drafts were accepted."""
    kernel = Sampler(slots, backend)(logits.to(DEVICES[backend]), rows)
    learnt = [list(slot.updates) for slot in slots.slots if slot]
    reference = Sampler(slots, "reference")(logits, other or rows)
    assert kernel.token_ids.tolist() == reference.token_ids.tolist()
    assert kernel.num_tokens.tolist() == reference.num_tokens.tolist()
    assert kernel.status.tolist() == reference.status.tolist()
    for mine, theirs in zip(kernel.logprobs, reference.logprobs, strict=True):
        assert (mine is None) == (theirs is None)
        for a, b in zip(mine or (), theirs or (), strict=True):
            assert (a.rank, a.top_ids) == (b.rank, b.top_ids)
            assert a.logprob == pytest.approx(b.logprob, abs=2e-5)
    for slot, mine in zip(filter(None, slots.slots), learnt, strict=True):
        assert [token for token, _ in mine] == [token for token, _ in slot.updates]
        for (_, a), (_, b) in zip(mine, slot.updates, strict=True):
            assert a == (None if b is None else pytest.approx(b, abs=2e-5))
    return int(kernel.num_tokens.sum()) - rows.num_requests


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(12))
def test_the_same_tokens_whatever_is_asked(seed):
    slots, logits, rows = world(seed, [*PARAMS.values(), *RARE.values()] * (2 if seed % 2 else 1))
    assert compare(slots, logits, rows) > 5


@QUIET
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 30))])
def test_the_same_tokens_on_a_gpu(seed):
    slots, logits, rows = world(seed, [*PARAMS.values(), *RARE.values()])
    assert compare(slots, logits, rows, backend="gpu") > 5


@pytest.mark.few(2)
@QUIET
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_every_rule_on_a_gpu(step, rule, dense, monkeypatch):
    """By nobody else's help. step: each so manieth method, others for the next rule."""
    monkeypatch.setattr(DeviceSlots, "falling_back", lambda *_: [])
    asked = [PARAMS[name] for name in ON_GPU[(RULES.index(rule) + 2 * dense) % step :: step]]
    slots, logits, rows = world(5, asked)
    proposals = (logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * 0.5).softmax(1)
    rows = replace(
        rows,
        rule=torch.full((rows.num_requests,), RULES.index(rule), dtype=torch.int32),
        proposals=proposals if dense else None,
    )
    for i in range(rows.num_requests):
        slots[i].sequence_state.forced.clear()
        slots.refresh_edits(i)
    compare(slots, logits, rows, backend="gpu")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_the_same_tokens_in_many_more_steps(seed):
    slots, logits, rows = world(seed, [*PARAMS.values()] * 2)
    compare(slots, logits, rows)


def test_only_the_rare_fall_back():
    slots, logits, rows = world(3, [*PARAMS.values(), *RARE.values()])
    step = CPUStep(logits, rows, backend_of(slots, "cpu", torch.device("cpu")).programs)
    moving = [i for i in range(rows.num_requests) if slots[i].moves_with_drafts]
    programs = backend_of(slots, "cpu", torch.device("cpu")).programs
    step.use_row_programs(write_draft_programs(programs, slots, rows, moving), programs)
    falls_back = step.run().status == FALLS_BACK
    assert falls_back.tolist() == [False] * len(PARAMS) + [True] * len(RARE)
    assert len(moving) >= 10


@pytest.mark.parametrize("rule", RULES)
def test_every_method_under_every_rule(rule):
    slots, logits, rows = world(50, [*PARAMS.values()])
    rules = torch.full((rows.num_requests,), RULES.index(rule), dtype=torch.int32)
    compare(slots, logits, replace(rows, rule=rules))


def test_slots_are_as_before_and_steps_repeat():
    slots, logits, rows = world(7, [*PARAMS.values()])
    before = [
        (list(s.history.tokens) if s.history else None, s.num_output, s.forced)
        for s in map(slots.__getitem__, range(len(PARAMS)))
    ]
    first = Sampler(slots)(logits, rows).token_ids.tolist()
    assert Sampler(slots)(logits, rows).token_ids.tolist() == first
    after = [
        (list(s.history.tokens) if s.history else None, s.num_output, s.forced)
        for s in map(slots.__getitem__, range(len(PARAMS)))
    ]
    assert before == after


# ---- what the comparison would see


@pytest.mark.parametrize(
    "fault",
    [
        lambda rows: replace(rows, mask=rows.mask.roll(1)),
        lambda rows: replace(rows, rule=(rows.rule + 1) % len(RULES)),
        lambda rows: replace(rows, proposals=torch.full((rows.num_rows, V), 1 / V)),
        lambda rows: replace(rows, position=rows.position + 1),
    ],
    ids=["mask of the next row", "another rule", "other proposals", "position off by one"],
)
def test_faults_are_seen(fault):
    slots, logits, rows = world(3, [*PARAMS.values()] * 2)
    with pytest.raises(AssertionError):
        compare(slots, logits, rows, fault(rows))


def test_rows_without_programs_of_their_own_are_seen(monkeypatch):
    """The planted fault: every row of a moving slot gets the program of its first."""
    monkeypatch.setattr(
        "tailrace.sampling.backends.cpu.write_draft_programs", lambda programs, slots, rows, moving: rows.slot.clone()
    )
    slots, logits, rows = world(3, [*PARAMS.values()] * 2)
    with pytest.raises(AssertionError):
        compare(slots, logits, rows)


@pytest.mark.parametrize("fault", ["another state", "another text"])
def test_what_is_learnt_and_keyed_by_is_seen(fault):
    """The planted faults: mirostat's μ is a bit too large in the kernels, or the tournaments hear of a token that
    nobody said."""
    slots, logits, rows = world(3, [*PARAMS.values()] * 2)
    for record, slot in zip(backend_of(slots, "cpu", torch.device("cpu")).programs.records, slots.slots, strict=False):
        assert slot is not None
        if fault == "another state":
            record.state[0] += 1.0
        elif slot.history is not None and slot.history.said is not None:
            slot.history.said.add(3)
    with pytest.raises(AssertionError):
        compare(slots, logits, rows)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name", [name for name, fields in PARAMS.items() if "mirostat" in fields or "watermark" in fields]
)
def test_a_text_is_the_same_by_kernels_and_reference_with_drafts_forks_and_preemption(name):
    """40 steps each: half of the drafts are what comes next, a fork goes on elsewhere, and half-way the slot is left
    and joined again."""
    table = torch.randn(16, V, generator=torch.Generator().manual_seed(8)) * 2
    texts = []
    for backend in ("cpu", "reference"):
        slots, sequence_state = Slots(2, V), SequenceState()
        slots.add(0, SamplingParams(**PARAMS[name]), key=5, prompt=[1, 2], sequence_state=sequence_state)
        said, rng = [1, 2], random.Random(4)
        for turn in range(40):
            drafts = [rng.randrange(12) for _ in range(rng.randrange(3))]
            logits = table[[token % 16 for token in (said[-1], *drafts)]]
            out = Sampler(slots, backend)(logits, Rows.drafted([0], [len(said)], [drafts]))
            slots.commit([0], out.tokens())
            said += out.tokens()[0]
            if turn == 10:
                slots.fork(0, 1, key=6)
            if turn == 20:
                slots.remove(0)
                slots.add(
                    0,
                    SamplingParams(**PARAMS[name]),
                    key=5,
                    prompt=[1, 2],
                    output=said[2:],
                    sequence_state=sequence_state,
                )
        twin = Sampler(slots, backend)(table[:1], Rows.plain([1], [0], [60])).tokens()
        texts.append((said, twin))
    assert texts[0] == texts[1]


# ---- masks


def mask_of_ids(*allowed: list[int]) -> torch.Tensor:
    masks = torch.zeros(len(allowed), -(-V // 32), dtype=torch.int32)
    for m, ids in enumerate(allowed):
        for i in ids:
            masks[m, i // 32] |= torch.tensor(1 << i % 32 if i % 32 < 31 else -(2**31), dtype=torch.int32)
    return masks


@QUIET
@pytest.mark.parametrize("backend", ["cpu", "reference", "gpu"])
def test_a_mask_is_its_rows_alone(backend):
    slots = Slots(3, V)
    for i in range(3):
        slots.add(i, SamplingParams(temperature=0.0), key=i, prompt=[1])
    logits = torch.zeros(3, V, device=DEVICES[backend])
    logits[:, 5] = 9.0
    masks = mask_of_ids([31, 699], [5, 32], [])
    rows = Rows.plain([0, 1, 2], [0, 1, 2], [1, 1, 1], mask=[0, -1, 1], masks=masks)
    assert Sampler(slots, backend)(logits, rows).token_ids.tolist() == [[31], [5], [5]]
    rows = Rows.drafted([0], [1], [[31, 5]], mask=[0, 1, 2], masks=masks)
    out = Sampler(slots, backend)(logits, rows)
    assert (out.token_ids.tolist(), out.status.tolist()) == ([[31, 5, -1]], [OK])
    rows = Rows.plain([0], [0], [1], mask=[2], masks=masks)
    assert Sampler(slots, backend)(logits, rows).status.tolist() == [EMPTY]


@pytest.mark.few(6)
@QUIET
@pytest.mark.parametrize("backend", ["cpu", "reference", "gpu"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mask": torch.tensor([0, 2])}, "mask must be in -1 … 1, got 2"),
        ({"mask": torch.tensor([0, -2])}, "mask must be in -1 … 1, got -2"),
        ({"mask": torch.tensor([0])}, r"mask must be contiguous int64 \[2\]"),
        ({"mask": torch.tensor([0, 0], dtype=torch.int32)}, "mask must be contiguous int64"),
        ({"masks": None}, "masks must be .* where rows have a mask, got none"),
        ({"masks": torch.zeros(2, 21, dtype=torch.int32)}, r"masks must be contiguous int32 \[M, 22\]"),
        ({"masks": torch.zeros(2, 22)}, "masks must be contiguous int32"),
        ({"masks": torch.zeros(2, 44, dtype=torch.int32)[:, ::2]}, "masks must be contiguous int32"),
    ],
)
def test_bad_masks(changed, message, backend):
    slots = Slots(2, V)
    for i in range(2):
        slots.add(i, SamplingParams(), key=i, prompt=[1])
    rows = Rows.plain([0, 1], [0, 1], [1, 1], mask=[0, 1], masks=torch.full((2, 22), -1, dtype=torch.int32))
    sampler = Sampler(slots, backend)
    assert sampler(torch.zeros(2, V, device=DEVICES[backend]), rows).num_tokens.tolist() == [1, 1]
    with pytest.raises(ValueError, match=message):
        sampler(torch.zeros(2, V), replace(rows, **changed))


def test_where_each_requests_rows_begin():
    rows = Rows.drafted([0, 1], [7, 3], [[1, 2], []], source=[4, 0])
    assert rows.source.tolist() == [4, 5, 6, 0]
    assert rows.position.tolist() == [7, 8, 9, 3]
    assert Rows.drafted([0, 1], [7, 3], [[1, 2], []]).source.tolist() == [0, 1, 2, 3]
