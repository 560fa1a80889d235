"""Why two runs part: the stage that is named is the one at which the ladders differ, from records of the sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from tailrace.explain.record import ExplainOptions
from tailrace.sampling import SamplingParams, Slots
from tailrace.sampling.explain import explain_row

if TYPE_CHECKING:
    from playwright.sync_api import Page

VOCAB = 200
REASON = """async ([left, right]) =>
  (await import("./page/js/parting.js")).reason(left, right, ["the left one", "the right one"])"""


def records(row: torch.Tensor, key: int, left: dict[str, Any], right: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Both records, each with both tokens in it; None where the tokens are the same."""
    slots = Slots(2, VOCAB)
    for i, fields in enumerate((left, right)):
        slots.add(i, SamplingParams(**fields), key=key, prompt=[5, 6, 7])
    rows = [slots.slots[i] for i in (0, 1)]
    made = [explain_row(row, slot, 3, ExplainOptions(10)) for slot in rows if slot is not None]
    tokens = tuple(record.token_id for record in made)
    if tokens[0] == tokens[1]:
        return None
    made = [explain_row(row, slot, 3, ExplainOptions(10, tokens)) for slot in rows if slot is not None]
    return [msgspec.to_builtins(record) | {"tokens": [f"t{id}" for id in record.ids]} for record in made]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("left", "right", "stage", "words"),
    [
        ({}, {"top_k": 2}, "top_k", "top-k 2 cut"),
        ({"min_p": 0.5}, {}, "min_p", "min-p 0.5 cut"),
        ({}, {"temperature": 5.0}, "temperature", "Temperature 5.0, which only the right one has, moved"),
        (
            {"temperature": 0.2},
            {"temperature": 3.0},
            "temperature",
            "temperature 0.2 in the left one and temperature 3",
        ),
        ({"temperature": 0.0}, {}, "draw", "The left one takes the likeliest"),
        ({}, {"frequency_penalty": 0.1, "logit_bias": {}}, None, ""),
        ({"top_k": 50, "top_p": 0.99}, {"top_k": 50, "top_p": 0.3}, "top_p", "top-p 0.3 cut"),
        ({"temperature": 0.7, "min_p": 0.3}, {"temperature": 0.7}, "min_p", "min-p 0.3 cut"),
    ],
)
def test_the_stage_is_the_one_that_differs(modules: Page, left, right, stage, words):
    met = 0
    for key in range(60):
        row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(key)) * 2
        pair = records(row, key, left, right)
        if pair is None:
            continue
        met += 1
        found = modules.evaluate(REASON, pair)
        assert found["stage"] == stage
        assert words.replace("5.0", "5") in found["sentence"]
        if met == 4:
            return
    assert stage is None or met > 0


def test_a_bias_a_seed_and_a_forced_token_are_named(modules: Page):
    row = torch.zeros(VOCAB)
    row[10], row[11] = 9.0, 8.9
    pair = records(row, 1, {"temperature": 0.001}, {"temperature": 0.001, "logit_bias": {11: 1.0}})
    assert pair is not None
    found = modules.evaluate(REASON, pair)
    assert (found["stage"], found["side"]) == ("logit_bias", 1)
    assert "which only the right one has" in found["sentence"]
    other = [pair[0], pair[1] | {"key": "00000000000000ff"}]
    assert modules.evaluate(REASON, other)["sentence"] == "The seeds differ, so the noise does."
    forced = [pair[0], pair[1] | {"origin": "forced"}]
    assert modules.evaluate(REASON, forced)["sentence"] == "In the right one the token was forced."


def test_a_banned_token_names_the_edit(modules: Page):
    row = torch.zeros(VOCAB)
    row[10], row[11] = 9.0, 5.0
    pair = records(row, 1, {"temperature": 0.01}, {"temperature": 0.01, "bad_words": ((10,),)})
    assert pair is not None
    found = modules.evaluate(REASON, pair)
    assert found["stage"] == "bad_words"
    assert found["sentence"].startswith("In the right one bad-words")
    assert "“t10”, which the left one drew" in found["sentence"]


def test_what_a_token_had_before_it_was_cut_is_after_the_edits(modules: Page):
    row = torch.zeros(VOCAB)
    row[10], row[11] = 9.0, 9.0
    biased = {"temperature": 1.0, "logit_bias": {11: -2.0}}
    pair = records(row, 1, {"logit_bias": {11: 8.0}}, biased | {"min_p": 0.5})
    assert pair is not None
    right = pair[1]
    place = right["ids"].index(11)
    had, model = (of["probabilities"][place] for of in (right["edits"][-1], right["model"]))
    sentence = modules.evaluate(REASON, pair)["sentence"]
    assert f"min-p 0.5 cut “t11” (it had {100 * had:.0f} %), which the left one drew." in sentence
    assert round(100 * had) != round(100 * model)


def test_a_token_that_the_model_itself_rules_out_is_told(modules: Page):
    row = torch.zeros(VOCAB)
    row[10], row[11] = 9.0, 8.9
    pair = records(row, 1, {"temperature": 0.001}, {"temperature": 0.001, "logit_bias": {11: 1.0}})
    assert pair is not None
    removed = ["model" if id == 11 else by for id, by in zip(pair[0]["ids"], pair[0]["removed_by"], strict=True)]
    found = modules.evaluate(REASON, [pair[0] | {"removed_by": removed}, pair[1]])
    assert found["sentence"] == "In the left one the model itself gave “t11” no chance, which the right one drew."


def test_where_two_runs_part(modules: Page):
    asked = """async ([left, right]) => (await import("./page/js/branches.js")).firstDifference(
      ...[left, right].map((ids) => ids.map((token_id) => ({record: {token_id}}))))"""
    for left, right, at in (([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], None), ([], [1], None), ([2], [1], 0)):
        assert modules.evaluate(asked, [left, right]) == at
