"""Every step of every record has its sentence; and what the sentences say."""

from __future__ import annotations

import pytest
import torch

from sampling import test_cases, test_mixed
from tailrace.explain import numbers as figures
from tailrace.explain import sentences
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.params import FIELDS
from tailrace.request.method_order import STEPS
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots

WORDS = dict(enumerate(["the", "a", "cat", "dog", "sat", "on", "mat"]))


def show(token: int) -> str:
    return WORDS.get(token, f"t{token}")


def record_of(fields: dict, row: list[float], *, key: int = 1, output: tuple[int, ...] = (), **more) -> Explanation:
    slots = Slots(1, len(row))
    slots.add(0, SamplingParams(**fields), key=key, prompt=[1], output=output, eos_token_ids=more.pop("eos", ()))
    rows = Rows.drafted([0], None, [[2]], **more) if more else Rows.plain([0], [0])
    return Sampler(slots).explain(torch.tensor([row] * rows.num_rows), rows)[0][0]


def test_labels_begin_a_sentence_and_name_fields_of_their_method():
    for entry in STEPS.values():
        values = {name: field.default for name, field in FIELDS.items()}
        label = entry.label(values) if callable(entry.label) else entry.label
        assert label
        assert not label.endswith(".")
        for name in sentences.fields_in(label):
            assert entry.name in (FIELDS[name].edit, FIELDS[name].refinement)


@pytest.mark.parametrize("seed", range(3))
def test_every_record_of_the_mixed_rows_has_its_sentences(seed):
    slots, logits, rows = test_mixed.world(seed, [*test_mixed.PARAMS.values()] * 2)
    for record in [record for one in Sampler(slots).explain(logits, rows, ExplainOptions(4)) for record in one]:
        said = sentences.sentences_of(record, show)
        assert [len(said.edits), len(said.refinements)] == [len(record.edits), len(record.refinements)]
        assert [not text for text in said.why_not] == [token == record.token_id for token in record.ids]
        for text in [said.model, said.draw, *said.edits, *said.refinements, *filter(None, said.why_not)]:
            assert text.endswith(".")
            assert "  " not in text
            assert not {"None", "nan", "inf", "{", "-"} & set(text.replace("-", " - ").split()) - {"-"}


@pytest.mark.parametrize("name", sorted({*test_cases.DRAWN} - {"processors"}))
def test_every_field_has_a_sentence(name):
    fields = test_cases.effect(name)
    record = record_of(fields, [x / 5 for x in range(40)], output=(3, 1, 2, 3), eos=(39,))
    said = sentences.sentences_of(record, show)
    assert len(said.edits) + len(said.refinements) == len(record.edits) + len(record.refinements)


ROW = [3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"top_p": 0.8}, "top-p 0.8 kept 2 of 7 tokens, 86.5 % of the mass."),
        ({"top_k": 50}, "top-k 50 had nothing to cut: 7 tokens stayed."),
        ({"temperature": 0.5}, "Temperature 0.5 sharpened the distribution; its entropy is 0.458 nats now."),
        (
            {"xtc_probability": 1.0},
            "XTC (threshold 0.1) removed 1 of the likeliest among 7 tokens, 63.3 % of the mass.",
        ),
    ],
)
def test_what_is_said_of_a_refinement(fields, wanted):
    record = record_of(fields, ROW, key=2)
    assert sentences.refinement_sentence(record, 0, show).startswith(wanted)


def test_a_token_near_the_boundary_is_called_that():
    record = next(
        found for key in range(99) if (found := record_of({"top_p": 0.9}, ROW, key=key)).token_id == found.ids[2]
    )
    assert sentences.refinement_sentence(record, 0, show) == (
        "top-p 0.9 kept 3 of 7 tokens, 95.1 % of the mass. “cat” was the least likely that stayed, with 8.56 %."
    )
    assert sentences.why_not(record, 3, show) == "top-p 0.9 cut it with 3.15 %; the least that stayed had 8.56 %."


@pytest.mark.parametrize(
    ("fields", "draw", "of_the"),
    [
        ({}, "p was 0.0315: drawn in 1 of 32 seeds; it won by ", "It could have come, with p 0.633;"),
        ({"temperature": 0.0}, "It has the largest logit, 1.00 above “a”.", ""),
        ({"top_k": 1}, "It was the only token that was left.", ""),
        (
            {"forced_token_ids": (3,)},
            "It was forced. “a” would have been drawn.",
            "“dog” was forced; this had p 0.633.",
        ),
        (
            {"allowed_token_ids": (3, 4)},
            "p was 0.731: drawn in 73 of 100 seeds;",
            "The list of allowed tokens banned it.",
        ),
    ],
)
def test_what_is_said_of_the_draw(fields, draw, of_the):
    said = [sentences.sentences_of(record_of(fields, ROW, key=key), show) for key in range(200)]
    assert any(one.draw.startswith(draw) and one.why_not[0].startswith(of_the) for one in said), said[0]


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        *((1.0, "100 %"), (0.5, "50.0 %"), (0.9994, "99.9 %"), (0.9996, "99.96 %"), (0.99999, "99.999 %")),
        *((0.0042, "0.420 %"), (1e-9, "1.00e−07 %"), (0.0, "0 %"), (1 - 1e-9, "99.9999999 %"), (0.9995, "99.95 %")),
    ],
)
def test_a_share_is_never_rounded_to_the_whole(p, shown):
    assert figures.format_percent(p) == shown


def test_numbers():
    assert [figures.format_probability(p) for p in (1.0, 0.31, 0.99961, 1.5e-7)] == ["1", "0.310", "0.9996", "1.50e−07"]
    assert [figures.format_frequency(p) for p in (1.0, 0.9999, 0.31, 0.0042, 0.0)] == [
        "in every seed",
        "in more than 99 of 100 seeds",
        "in 31 of 100 seeds",
        "in 1 of 238 seeds",
        "never",
    ]


def test_no_figure_is_less_than_nothing():
    assert figures.format_digits(-0.0) == "0"


def test_a_certain_token_has_no_negative_entropy():
    record = record_of({"temperature": 0.5, "top_k": 1}, [0.0, 2000.0, 0.0, 0.0])
    entropies = [record.model.entropy, *(step.entropy for step in record.refinements)]
    assert [str(entropy) for entropy in entropies] == ["0.0"] * len(entropies)
    assert "0 nats" in sentences.sentences_of(record, str).model
    assert "−0" not in sentences.sentences_of(record, str).model
