"""Why a token came: the records name the tokens that every backend draws, over the mixed rows of the other suites, and
keep the laws of record_laws.py."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
import torch

from kernels.backends import DEVICES, QUIET
from sampling import record_laws, test_cases, test_guided_rows, test_mixed
from tailrace.explanation import ExplainOptions, Explanation
from tailrace.kernels.rows import RULES
from tailrace.sampling import Guidance, Rows, Sampler, Slots
from tailrace.sampling.backends import BackendName
from tailrace.sampling.guidance import raw_row

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
            entry.edits,
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
            assert (record.model.conditional is None) == (rows.guidance is None or rows.guidance.companion[row] < 0)
            assert msgspec.json.decode(msgspec.json.encode(record), type=Explanation).ids == record.ids
    return [record for one in records for record in one]


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


@QUIET
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_guided_rows_of_every_kind(backend):
    """Rows that are −inf, +inf or NaN in one of the two: what can't be drawn has no record."""
    logits = test_guided_rows.pairs(257, torch.bfloat16)
    n = logits.shape[0] // 2
    slots = test_guided_rows.slots_for(test_guided_rows.PARAMS["everything"], 257, n)
    rows = Rows.plain(range(n), range(n), [9] * n, guidance=test_guided_rows.guided(n))
    assert 0 < len(explained(slots, logits, rows, backend, ExplainOptions(5))) < n


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
            probability = record.draw.probabilities[record.ids.index(draft.token)]
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
    fields = test_cases.effect(name) if name != "sampler_order" else {"sampler_order": ("top_p", "temperature")}
    fields |= {"temperature": 0.8, "top_p": 0.9} if name == "sampler_order" else {}
    slots = Slots(4, 40)
    for i in range(4):
        slots.add(
            i,
            test_cases.SamplingParams(**fields),
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
