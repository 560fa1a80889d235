"""Why a token came: the records name the tokens that every backend draws, over the mixed rows of the other suites, and
keep the laws of record_laws.py."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernels.backends import DEVICES, QUIET
from sampling import record_laws, test_cases, test_guided_rows, test_mixed
from tailrace.errors import ParameterError
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.kernels.rows import RULES
from tailrace.request.options import Watermark
from tailrace.sampling import Guidance, Rows, Sampler, SamplingParams, Slots, explain, processors, sample
from tailrace.sampling.backends import BackendName
from tailrace.sampling.explain import explain_row, what_if
from tailrace.sampling.guidance import raw_row
from tailrace.sampling.reference import BadRowError
from tailrace.sampling.slot import Slot

BACKENDS: tuple[BackendName, ...] = ("reference", "cpu")
EVERYTHING = {**test_mixed.PARAMS, **test_mixed.RARE}


def state_of(slots: Slots) -> list:
    """All of the slots that a draw after this one depends on."""
    return [
        (
            entry.num_output,
            entry.history and (list(entry.history.tokens), entry.history.counts and entry.history.counts.lists()),
            dict(entry.state),
            list(entry.updates),
            entry.basis,
            dict(entry.sequence_state.forced),
            repr(entry.banned),
            entry.edit_methods,
        )
        for entry in slots.slots
        if entry is not None
    ]


def explained(
    slots: Slots, logits: torch.Tensor, rows: Rows, backend: BackendName, options: ExplainOptions
) -> list[Explanation]:
    """The records of a step, which name what is drawn, change nothing and keep the laws."""
    sampler, there = Sampler(slots, backend), logits.to(DEVICES[backend])
    sampled = sampler(there, rows)
    before = state_of(slots)
    records = sampler.explain(there, rows, options)
    assert state_of(slots) == before
    assert [[record.token_id for record in one] for one in records] == sampled.tokens()
    rows = rows if not rows.counted else replace(rows, position=slots.positions(rows), counted=False)
    for i, one in enumerate(records):
        for j, record in enumerate(one):
            row = int(rows.start[i]) + j
            record_laws.check(record, raw_row(logits, rows, row).float())
            assert record.position == int(rows.position[row])
            if (draft := record.draft) is not None:
                q = None if (dense := rows.proposals_of(i)) is None else float(dense[j, draft.token])
                assert (draft.place, draft.token, draft.q) == (j, int(rows.draft[row]), q)
            assert (record.model.conditional is None) == (rows.guidance is None or rows.guidance.companion[row] < 0)
            assert msgspec.json.decode(msgspec.json.encode(record), type=Explanation).ids == record.ids
    return [record for one in records for record in one]


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_records_name_what_is_drawn_whatever_is_asked(seed, backend):
    """Every knob, every rule, ragged drafts, masks, bans and forced tokens, with logprobs and without."""
    slots, logits, rows = test_mixed.world(seed, [*EVERYTHING.values()])
    records = explained(slots, logits, rows, backend, ExplainOptions(3, (1, 699)))
    assert {"drawn", "forced", "accepted", "replaced"} <= {record.origin for record in records}


@QUIET
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_records_name_what_a_gpu_draws(seed):
    names = [*EVERYTHING][seed % 3 :: 3]
    slots, logits, rows = test_mixed.world(seed, [EVERYTHING[name] for name in names])
    assert explained(slots, logits, rows, "gpu", ExplainOptions(2))


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_guided_rows_have_both_rows_and_the_combined_one(backend):
    slots, logits, rows = test_mixed.world(4, [*test_mixed.PARAMS.values()])
    n = rows.num_rows
    guidance = Guidance.of([-1 if row % 3 else n + row for row in range(n)], [1.0 + row % 5 / 4 for row in range(n)])
    both = torch.cat([logits, logits.roll(1, 0) * 0.5])
    for record in explained(slots, both, replace(rows, guidance=guidance), backend, ExplainOptions(3)):
        if (conditional := record.model.conditional) is not None:
            assert record.model.unconditional is not None
            source = next(row for row in range(n) if logits[row, record.ids].tolist() == conditional)
            assert both[n + source, record.ids].tolist() == record.model.unconditional


@pytest.mark.few(1)
@QUIET
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_guided_rows_of_every_kind(backend):
    """Rows that are −inf, +inf or NaN in one of the two: what can't be drawn has no record."""
    logits = test_guided_rows.pairs(257, torch.bfloat16)
    n = logits.shape[0] // 2
    slots = test_guided_rows.slots_for(test_guided_rows.PARAMS["everything"], 257, n)
    rows = Rows.plain(range(n), range(n), [9] * n, guidance=test_guided_rows.guided(n))
    assert 0 < len(explained(slots, logits, rows, backend, ExplainOptions(5))) < n


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dense", [False, True])
def test_drafts_say_what_was_proposed_and_what_decided(rule, dense):
    slots, logits, rows = test_mixed.world(6, [{"top_p": 0.98}, {}, {"temperature": 0.0}, {"min_p": 0.001}] * 12)
    rows = replace(
        rows,
        rule=torch.full((rows.num_requests,), RULES.index(rule), dtype=torch.int32),
        proposals=(logits + torch.randn_like(logits)).softmax(1) if dense else None,
    )
    records = Sampler(slots).explain(logits, rows)
    seen = set()
    for i, one in enumerate(records):
        drafts = rows.draft[int(rows.start[i]) : int(rows.start[i + 1]) - 1].tolist()
        for j, record in enumerate(one):
            seen.add(record.origin)
            assert (record.draft is None) == (j == len(drafts))
            if (draft := record.draft) is None:
                assert record.origin in ("drawn", "greedy", "forced")
                continue
            assert (draft.place, draft.token) == (j, drafts[j])
            assert (draft.q is None) == (not dense)
            probability = record.draw.probabilities[record.ids.index(record.token_id)]
            if record.origin == "accepted":
                assert record.token_id == draft.token
                assert record_laws.close(draft.p, probability or 0.0)
            if draft.bound is not None and record.origin != "forced":
                assert (record.origin == "accepted") == (draft.p > draft.bound)
            if record.origin == "replaced" and draft.rule == "rejection":
                assert record.refinements[-1].method == "draft"
                assert record.removed_by[record.ids.index(draft.token)]
            if draft.rule == "exact" and record.origin != "forced":
                assert record.token_id == record.draw.winner
    assert {"accepted", "replaced", "drawn"} <= seen


@pytest.mark.parametrize("name", sorted({*test_cases.DRAWN, "sampler_order"} - {"processors"}))
def test_every_field_over_a_small_vocabulary_all_of_which_is_shown(name):
    """Nothing is hidden: probabilities add up to 1, and what is counted is there."""
    reordered: dict = {"sampler_order": ("top_p", "temperature"), "temperature": 0.8, "top_p": 0.9}
    fields = reordered if name == "sampler_order" else test_cases.effect(name)
    slots = Slots(4, 40)
    for i in range(4):
        slots.add(
            i,
            SamplingParams(**fields),
            key=i,
            prompt=[1, 2, 3, 1, 2, 0],
            output=[7, 1, 2, 3, 0, 3, 1, 2],
            eos_token_ids=[39],
            handled_by_caller=test_cases.validation.CALLER_FIELDS,
        )
    logits = torch.linspace(4.0, -4.0, 40).repeat(4, 1)
    rows = Rows.plain(range(4), range(4))
    for record in explained(slots, logits, rows, "cpu", ExplainOptions(100)):
        assert len(record.ids) == 40
        for step in record.refinements:
            assert step.kept == sum(p is not None for p in step.probabilities)
            assert record_laws.close(sum(p or 0.0 for p in step.probabilities), 1.0)
            logs = [p * math.log(p) for p in step.probabilities if p]
            assert record_laws.close(step.entropy, -sum(logs)) or step.entropy < 1e-9
        assert record_laws.close(sum(p or 0.0 for p in record.draw.probabilities), 1.0)
        assert record.edits or record.refinements or name in ("dry_penalty_last_n", "dry_sequence_breakers")


# ---- the same row with other parameters


def test_what_if_keeps_sequence_key_and_noise():
    slots = Slots(2, 40)
    fields: dict = {"temperature": 0.8, "presence_penalty": 1.0}
    both: list[dict] = [fields, fields | {"top_p": 0.5, "dry_multiplier": 1.0}]
    for slot, own in enumerate(both):
        slots.add(slot, SamplingParams(**own), key=7, prompt=[1, 2, 3, 1, 2], output=[3, 1], eos_token_ids=[39])
    slots.force(0, [5, 6])
    slots.force(1, [5, 6])
    raw, before = torch.linspace(4.0, -4.0, 40), state_of(slots)
    other = what_if(slots[0], slots[1].params)
    assert explain_row(raw, other, 7, ExplainOptions()) == explain_row(raw, slots[1], 7, ExplainOptions())
    assert state_of(slots) == before


def test_what_if_wants_the_tokens_where_nobody_kept_them():
    slots = Slots(1, 40)
    slots.add(0, SamplingParams(), key=7, prompt=[1, 2, 3], output=[4])
    raw = torch.linspace(4.0, -4.0, 40)
    cut = explain_row(raw, what_if(slots[0], SamplingParams(top_k=3)), 4, ExplainOptions())
    assert cut.refinements[0].kept == 3
    with pytest.raises(ValueError, match="tokens must be given"):
        what_if(slots[0], SamplingParams(presence_penalty=1.0))
    with pytest.raises(ValueError, match="tokens must be the 4 ids of prompt and output, got 1"):
        what_if(slots[0], SamplingParams(presence_penalty=1.0), [1])
    penalised = explain_row(
        raw, what_if(slots[0], SamplingParams(presence_penalty=1.0), [1, 2, 3, 4]), 4, ExplainOptions()
    )
    assert (penalised.edits[0].method, penalised.edits[0].changed) == ("penalties", 1)


def test_a_token_that_these_parameters_do_not_draw_is_told_apart():
    slots = Slots(1, 40)
    slots.add(0, SamplingParams(top_k=3), key=7, prompt=[1])
    record = explain_row(torch.linspace(4.0, -4.0, 40), slots[0], 1, ExplainOptions(2), token=30)
    assert (record.token_id, record.draw.winner in (0, 1, 2)) == (30, True)
    assert record.removed_by[record.ids.index(30)] == "top_k"


def test_learning_methods_go_on_from_what_was_learnt():
    slots = Slots(1, 40)
    slots.add(0, SamplingParams(mirostat=2, mirostat_tau=2.0), key=7, prompt=[1])
    slots[0].state["mirostat_mu"] = 0.1
    raw = torch.linspace(4.0, -4.0, 40)
    same = explain_row(raw, what_if(slots[0], slots[0].params), 1, ExplainOptions())
    assert same == explain_row(raw, slots[0], 1, ExplainOptions())
    assert same.refinements[0].kept == 1
    begun = explain_row(raw, what_if(slots[0], SamplingParams(adaptive_target=0.2)), 1, ExplainOptions())
    assert begun.refinements[0].method == "adaptive_p"


# ---- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExplainOptions(0), r"explain.top must be an integer in \[1, 100\], got 0"),
        (lambda: ExplainOptions(101), "explain.top"),
        (lambda: ExplainOptions(True), "explain.top"),
        (lambda: ExplainOptions(5, tuple(range(101))), "explain.ids must be at most 100 token ids"),
        (lambda: ask(ExplainOptions(5, (40,))), r"explain.ids: token id 40 is not in 0 … 39"),
        (lambda: ask(ExplainOptions(5, (-1,))), "explain.ids: token id -1"),
        (lambda: ask([ExplainOptions()]), "options must be ExplainOptions, or a list of them for 2 requests"),
        (lambda: ask([None, 3]), "options must be a ExplainOptions"),
        (lambda: ask(None), "options must be ExplainOptions"),
        (lambda: ask(ExplainOptions(), slots=(0, 2)), "slot 2 is empty"),
        (lambda: ask(ExplainOptions(), vocab=41), "logits must have 40 columns"),
        (lambda: ask(ExplainOptions(), dtype=torch.float64), "bf16, f16 or f32"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ParameterError, match=message):
        make()


def ask(options, slots=(0, 1), vocab=40, dtype=torch.float32) -> list:
    held = Slots(3, 40)
    for slot in range(2):
        held.add(slot, SamplingParams(), key=1, prompt=[1])
    return Sampler(held).explain(torch.zeros(2, vocab, dtype=dtype), Rows.plain(slots, [0, 1], [1, 1]), options)


def test_each_request_has_its_own_options_and_a_bad_row_none_but_its_own_records():
    slots = Slots(4, 40)
    for slot in range(4):
        slots.add(slot, SamplingParams(), key=1, prompt=[1])
    logits = torch.linspace(4.0, -4.0, 40).repeat(4, 1)
    logits[2, 3] = math.nan
    records = Sampler(slots).explain(
        logits, Rows.plain(range(4), range(4)), [ExplainOptions(1), None, ExplainOptions(), ExplainOptions(2, (39,))]
    )
    assert [len(one) for one in records] == [1, 0, 0, 1]
    assert 39 in records[3][0].ids
    with pytest.raises(BadRowError, match="NaN"):
        explain_row(logits[2], slots[2], 1, ExplainOptions())


def test_a_processor_that_fails_is_its_own_requests(monkeypatch):
    monkeypatch.setitem(processors.REGISTERED, "fails", lambda row, tokens: 1 / 0)
    monkeypatch.setitem(processors.REGISTERED, "shifts", lambda row, tokens: row.roll(1))
    slots = Slots(3, 40)
    for slot, name in enumerate(("fails", "shifts")):
        slots.add(slot, SamplingParams(processors={name: {}}), key=1, prompt=[1])
    slots.add(2, SamplingParams(), key=1, prompt=[1])
    logits = torch.linspace(4.0, -4.0, 40).repeat(3, 1)
    records = explained(slots, logits, Rows.plain(range(3), range(3)), "cpu", ExplainOptions(100))
    assert [(record.edits[0].changed if record.edits else 0) for record in records] == [40, 0]


# ---- what the tests would see

FAULTS = {
    "another position": (
        "walk_row",
        lambda walk: lambda raw, slot, position, mask: walk(raw, slot, position + 1, mask),
    ),
    "no mask": ("walk_row", lambda walk: lambda raw, slot, position, mask: walk(raw, slot, position, None)),
    "no guidance": (
        "draft_rows_of",
        lambda of: lambda slots, x, rows, i: of(slots, x, replace(rows, guidance=None), i),
    ),
    "no proposals": (
        "draft_rows_of",
        lambda of: lambda slots, x, rows, i: of(slots, x, replace(rows, proposals=None), i),
    ),
    "the slot is not put back": ("preserve_slot", lambda unchanged: lambda slot: nullcontext()),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault, monkeypatch):
    slots, logits, rows = test_mixed.world(4, [*test_mixed.PARAMS.values()])
    guidance = Guidance.of([rows.num_rows + row for row in range(rows.num_rows)], [2.0] * rows.num_rows)
    both = torch.cat([logits, logits.roll(1, 0) * 0.5])
    rows = replace(rows, guidance=guidance, proposals=(logits + torch.randn_like(logits)).softmax(1))
    explained(slots, both, rows, "cpu", ExplainOptions(3))
    name, wrong = FAULTS[fault]
    monkeypatch.setattr(explain, name, wrong(getattr(explain, name)))
    with pytest.raises(AssertionError):
        explained(slots, both, rows, "cpu", ExplainOptions(3))


def test_a_state_that_does_not_follow_the_drafts_is_seen(monkeypatch):
    params: dict = {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 5.0}
    slots, logits, rows = test_mixed.world(5, [params] * 20)
    explained(slots, logits, rows, "cpu", ExplainOptions(3))
    drawn = Sampler(slots)(logits, rows).tokens()
    for slot in filter(None, slots.slots):
        slot.updates.clear()  # as if nothing had been drawn
    records = Sampler(slots).explain(logits, rows, ExplainOptions(3))
    assert [[record.token_id for record in one] for one in records] == drawn
    monkeypatch.setattr(Slot, "update_of", lambda slot, token: (token, None))
    records = Sampler(slots).explain(logits, rows, ExplainOptions(3))
    assert [[record.token_id for record in one] for one in records] != drawn


def changed(step: str, **fields):
    """A record whose first step of this kind says something else."""

    def spoil(record: Explanation) -> Explanation:
        part = getattr(record, step)
        if isinstance(part, list):
            return msgspec.structs.replace(record, **{step: [msgspec.structs.replace(part[0], **fields), *part[1:]]})
        return msgspec.structs.replace(record, **{step: msgspec.structs.replace(part, **fields)})

    return spoil


SPOILT = {
    "another mass": changed("refinements", mass=0.5),
    "another count": changed("refinements", kept=3),
    "another boundary": changed("refinements", boundary=0.2),
    "no boundary": changed("refinements", boundary=None),
    "others cut": changed("refinements", cut_ids=[3], cut_probabilities=[0.4]),
    "more banned": changed("edits", banned=3),
    "another winner": changed("draw", winner=2),
    "another margin": changed("draw", margin=0.001),
    "another rank": changed("model", ranks=[2, 1, *range(3, 41)]),
    "another entropy": changed("model", entropy=1.0),
    "another key": lambda record: msgspec.structs.replace(record, key="0" * 15 + "8"),
    "removed by another": lambda record: msgspec.structs.replace(record, removed_by=["top_k"] * 40),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_record_that_lies_is_seen(fault):
    slots = Slots(1, 40)
    slots.add(0, SamplingParams(top_p=0.8, logit_bias={3: 1.0}), key=7, prompt=[1])
    raw = torch.linspace(4.0, -4.0, 40)
    record = explain_row(raw, slots[0], 1, ExplainOptions(100))
    record_laws.check(record, raw)
    with pytest.raises(AssertionError):
        record_laws.check(SPOILT[fault](record), raw)


# ---- random rows and parameters


@st.composite
def asked(draw: st.DrawFn) -> SamplingParams:
    """Up to five of the fields that change what is drawn."""
    names = draw(st.lists(st.sampled_from(sorted({*test_cases.DRAWN} - {"processors"})), max_size=5, unique=True))
    fields: dict = {}
    for name in names:
        fields |= test_cases.effect(name)
    try:
        return SamplingParams(**fields)
    except ParameterError:  # they exclude one another
        return SamplingParams(**test_cases.effect(names[0]))


@pytest.mark.long
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    params=asked(),
    seed=st.integers(0, 2**20),
    vocab=st.sampled_from([2, 5, 40, 300]),
    scale=st.sampled_from([0.0, 0.3, 3.0, 40.0]),
    kind=st.sampled_from(["plain", "ties", "holes"]),
)
def test_random_rows_and_parameters(params, seed, vocab, scale, kind):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, vocab, generator=rng) * scale
    logits = logits.round() if kind == "ties" else logits
    if kind == "holes":
        logits[:, 1::2] = -math.inf
    slots = Slots(3, vocab)
    said = torch.randint(0, vocab, (12,), generator=rng).tolist()
    try:
        for slot in range(3):
            slots.add(slot, params, key=seed + slot, prompt=said[:6], output=said[6:], eos_token_ids=[vocab - 1])
    except ParameterError:  # a token of theirs is not in so small a vocabulary
        assume(False)
    drafts = torch.randint(0, vocab, (2,), generator=rng).tolist()
    rows = Rows.drafted([0], [12], [drafts], RULES[seed % 4]) if seed % 3 == 0 else Rows.plain(range(3), range(3))
    explained(slots, logits, rows, "cpu", ExplainOptions(4 if seed % 2 else 100))


def test_the_pages_own_example_runs(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "explain.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(block, "explain.md", "exec"), {})
    draw, winner = capsys.readouterr().out.splitlines()
    assert draw.startswith("p was ")
    assert 0 <= int(winner) < 1000


def test_rows_without_slots_are_explained_by_a_slot_of_their_own():
    """What docs/explain.md says of `sample`."""
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1)) * 3
    ids = sample(logits, temperature=0.8, top_p=0.9, seed=[*range(6)], position=[*range(5, 11)])
    for row in range(6):
        slots = Slots(1, 300)
        slots.add(0, SamplingParams(temperature=0.8, top_p=0.9), key=row, prompt=[])
        [[record]] = Sampler(slots).explain(logits, Rows.plain([0], [row], [5 + row]))
        assert (record.token_id, record.position) == (ids[row], 5 + row)


@pytest.mark.parametrize(
    "mark",
    [
        {"kind": "kgw", "key": 987654321, "context": 1},
        {"kind": "synthid", "key": 987654321, "context": 1},
        {"kind": "synthid", "scheme": "transformers", "keys": (987654321, 987654322), "context": 1},
    ],
)
def test_a_watermarks_keys_and_long_lists_are_in_no_record(mark):
    slots = Slots(1, 40)
    bias = dict.fromkeys(range(30), 0.5)
    slots.add(0, SamplingParams(watermark=Watermark(**mark), logit_bias=bias), key=1, prompt=[1, 2], output=[3, 4, 5])
    record = explain_row(torch.linspace(4.0, -4.0, 40), slots[0], 5, ExplainOptions(2))
    assert {"green_list", "synthid"} & {step.method for step in (*record.edits, *record.refinements)}
    assert record.edits[0].fields == {"logit_bias": "30 entries"}
    assert b"98765432" not in msgspec.json.encode(record)
