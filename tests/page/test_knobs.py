"""The knobs: every field of the declarations, what is sent, what is refused in the browser already, presets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import say
from tailrace.api.page_fields import shown_fields
from tailrace.api.presets import PRESETS
from tailrace.errors import ParameterError
from tailrace.params import FIELDS, SamplingParams

if TYPE_CHECKING:
    from playwright.sync_api import Page

PROMPT = {"prompt_logprobs", "prompt_logprob_start", "prompt_logprob_token_ids", "prompt_logprobs_temperature"}
OWN = {"n", "forced_token_ids", *PROMPT, "logprobs", "logprob_token_ids", "report_entropy", "logprobs_mode"}
OWN |= {"explain", "return_sampling_mask"}
PARSE = """async ([field, form, text]) => (await import("./page/js/fields.js")).parse(field, form, text)"""


def knob(page: Page, name: str) -> Any:
    """The knob of a field, with its group open."""
    found = page.locator(f".knobs-panel [data-field={name}]")
    found.wait_for(state="attached")  # before, an open group would look like a closed one, and be closed
    if not found.is_visible():
        page.locator(".knobs-panel details", has=page.locator(f"[data-field={name}]")).locator("> summary").click()
    return found


def sent(page: Page) -> dict[str, Any]:
    """What the next request would carry of the knobs; it is sent."""
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "hello 3")
    return json.loads(asked.value.post_data or "")


def test_every_field_has_a_knob_with_its_sentence(modules: Page):
    shown = modules.locator(".knobs-panel .knob")
    shown.first.wait_for(state="attached")
    names = shown.evaluate_all("all => all.map((one) => one.dataset.field)")
    assert set(names) == {field.name for field in shown_fields() if "chat" in field.forms} - OWN
    text = modules.locator(".knobs-panel").text_content() or ""
    for field in shown_fields():
        assert field.name in OWN or field.doc in text


@pytest.mark.long
def test_only_what_differs_is_sent_and_a_reset_takes_it_back(page: Page):
    page.locator("[data-field=top_p]").wait_for()
    assert not {"top_p", "temperature"} & sent(page).keys()
    knob(page, "top_p").locator("input[type=text]").fill("0.9")
    knob(page, "top_k").locator("input[type=range]").fill("40")
    knob(page, "stop").locator("textarea").fill("END\n\\n\\n")
    knob(page, "logit_bias").locator("textarea").fill("7=-100\n9=1.5")
    knob(page, "p_less").locator("input").check()
    knob(page, "penalty_scope").locator("select").select_option("both")
    knob(page, "presence_penalty").locator("input[type=text]").fill("0.5")
    knob(page, "speculation").locator("textarea").fill('{"max_drafts": 0}')
    body = sent(page)
    assert (body["top_p"], body["top_k"], body["p_less"]) == (0.9, 40, True)
    assert body["stop"] == ["END", "\n\n"]
    assert body["logit_bias"] == {"7": -100, "9": 1.5}
    assert (body["penalty_scope"], body["presence_penalty"]) == ("both", 0.5)
    assert body["speculation"] == {"max_drafts": 0}
    page.get_by_label("Reset top_p").click()
    knob(page, "top_k").locator("input[type=range]").fill("0")
    knob(page, "p_less").locator("input").uncheck()
    knob(page, "stop").locator("textarea").fill("")
    body = sent(page)
    assert not {"top_p", "top_k", "p_less", "stop"} & body.keys()
    page.get_by_role("button", name="Reset all (4 changed)").click()
    assert set(sent(page)) <= {
        "max_tokens",
        "model",
        "messages",
        "seed",
        "stream",
        "stream_options",
        "explain",
        "return_token_ids",
        "return_sampling_params",
        "resumable",
    }


@pytest.mark.parametrize(
    ("name", "typed", "error"),
    [
        ("top_p", "1.5", "top_p must be a number in [0, 1]"),
        ("top_p", "much", "top_p must be a number"),
        ("top_k", "2.5", "top_k must be an integer"),
        ("epsilon_cutoff", "1", "epsilon_cutoff must be a number in [0, 1)"),
        ("seed", "9007199254740993", "seed must be an integer"),
        ("stop_token_ids", "1, x", '"x" is no token id'),
        ("logit_bias", "the", "each line is TEXT=NUMBER"),
        ("watermark", "{", "this is no JSON"),
    ],
)
def test_what_is_out_of_range_is_said_and_not_sent(modules: Page, name, typed, error):
    modules.evaluate("async () => { (await import('/page/js/state.js')).params.value = {}; }")
    one = knob(modules, name)
    one.locator("input[type=text], textarea").fill(typed)
    one.get_by_role("alert").filter(has_text=error).wait_for()
    assert one.locator("[aria-invalid=true]").count() == 1
    assert "given" not in (one.get_attribute("class") or "")


def test_a_range_means_what_the_server_means(modules: Page):
    """At both ends of each range, and beyond them."""
    for field in shown_fields():
        if field.low is None or field.high is None or abs(field.low) > 2**53:
            continue
        form = field.forms["chat"]
        step = 1 if form == "integer" else 1e-9
        for value, inside in (
            (field.low, field.low_in),
            (field.low - step, False),
            (field.high, field.high_in),
            (field.high + (step if form == "integer" else 1e-3), False),
        ):
            told = {"name": field.name, "forms": field.forms, "low": field.low, "high": field.high}
            told |= {"low_in": field.low_in, "high_in": field.high_in}
            found = modules.evaluate(PARSE, [told, form, repr(value)])
            assert ("value" in found) == inside, (field.name, value, found)


def test_lists_and_maps_are_read_as_they_are_written(modules: Page):
    """And what is shown of a value reads back as the value."""
    shown = """async ([form, value]) => (await import("./page/js/fields.js")).shownValue(form, value)"""
    field = {"name": "x", "forms": {}}
    for form, value in (
        ("texts", ["a=b", " it's\n", "\t", "\\n", "two words"]),
        ("ids", [1, 2, 2147483647]),
        ("map", {"7": -100, " the=": 1.5, "line\n": 0.25}),
        ("json", {"kind": "kgw", "key": 42}),
        ("text", "  as it is\n"),
    ):
        text = modules.evaluate(shown, [form, value])
        assert modules.evaluate(PARSE, [field, form, text]) == {"value": value}, text


@pytest.mark.long
def test_a_knob_without_effect_says_so(page: Page):
    one = knob(page, "dry_base")
    one.locator("input[type=text]").fill("2")
    assert "does nothing without dry_multiplier" in one.inner_text()
    knob(page, "dry_multiplier").locator("input[type=text]").fill("0.8")
    assert "does nothing" not in one.inner_text()
    knob(page, "min_p").locator("input[type=text]").fill("0.1")
    knob(page, "mirostat").locator("input[type=text]").fill("2")
    assert "has no effect with mirostat, which replaces it" in knob(page, "min_p").inner_text()


def test_what_takes_the_effect_of_a_field_away_is_the_declarations(modules: Page):
    """In the browser a field is idle exactly where the sampler's own parameters are refused for it."""
    asked = """async ([name, params]) => {
      const { idle } = await import("./page/js/fields.js");
      const declared = await (await fetch("page/fields.json")).json();
      return idle(declared.fields.find((field) => field.name === name), params, declared, "fake");
    }"""
    acting = {"temperature": (0.0, 1.0, 0.5), "mirostat": (0, 1, 2), "p_less": (False, True)}
    samples = {"dynatemp_range": 0.3, "smoothing_factor": 0.2, "xtc_probability": 0.5, "adaptive_target": 0.5}
    samples |= {"top_p": 0.9, "p_less_norm": True, "top_k": 3}
    idle = 0
    for name, value in samples.items():
        for other, values in acting.items():
            for at in values:
                params = {name: value, other: at}
                try:
                    SamplingParams(**params)
                    refused = ""
                except ParameterError as error:
                    refused = str(error)
                said = modules.evaluate(asked, [name, params])
                assert (said != "" and refused.startswith(f"{name} {said}")) or said == refused == "", params
                idle += said != ""
    assert idle > 10


@pytest.mark.parametrize(
    "names", [("precise", "wild"), pytest.param(tuple(PRESETS), marks=pytest.mark.long)], ids=["two", "all"]
)
def test_presets_replace_what_bends_and_cuts_and_leave_the_rest(page: Page, names: tuple[str, ...]):
    knob(page, "max_tokens").locator("input[type=text]").fill("5")
    knob(page, "top_k").locator("input[type=text]").fill("7")
    choice = page.locator(".knobs-panel .presets select")
    for name in names:
        fields = PRESETS[name]
        choice.select_option(name)
        assert page.locator(".knobs-panel .preset-sentence").inner_text()
        body = sent(page)
        assert body["max_tokens"] == 5
        assert "top_k" in body or "top_k" not in fields
        given = {key: list(v) if isinstance(v, tuple) else v for key, v in fields.items()}
        given = {key: v for key, v in given.items() if not FIELDS[key].neutral(v)}  # where it would begin anyway
        assert {key: body[key] for key in given} == given
        assert choice.input_value() == "" or choice.input_value() == name


@pytest.mark.long
def test_a_preset_of_ones_own_is_kept_by_the_browser(page: Page):
    knob(page, "top_p").locator("input[type=text]").fill("0.42")
    page.get_by_role("button", name="Save as a preset").click()
    page.get_by_label("Name of the preset").fill("<b>mine</b>")
    page.get_by_role("button", name="Save", exact=True).click()
    choice = page.locator(".knobs-panel .presets select")
    choice.select_option("greedy")
    page.reload()
    page.locator("[data-field=top_p]").wait_for()
    choice.select_option("<b>mine</b>")
    assert sent(page)["top_p"] == 0.42
    page.get_by_role("button", name="Delete the preset").click()
    assert "<b>mine</b>" not in choice.inner_text()


def test_a_models_own_defaults_are_where_a_knob_begins(modules: Page):
    """A preset, and a reset, mean the same on a model that has defaults of its own."""
    asked = """async (defaults) => {
      const { used, startOf, withField } = await import("./page/js/fields.js");
      const { applied } = await import("./page/js/presets.js");
      const declared = { ...(await (await fetch("page/fields.json")).json()), defaults };
      const field = (name) => declared.fields.find((each) => each.name === name);
      const preset = { fields: { temperature: 0.6, min_p: 0.1 } };
      return {
        start: startOf(field("top_p"), declared, "m"),
        neutral: withField({}, field("top_p"), 1.0, startOf(field("top_p"), declared, "m")),
        back: withField({ top_p: 1.0 }, field("top_p"), 0.8, startOf(field("top_p"), declared, "m")),
        applied: applied({ top_k: 3, seed: 1 }, preset, declared, "m"),
        used: used(
          { min_p: 0.1, temperature: 0.6, top_p: 0.8, max_tokens: 9, explain: {} }, { min_p: 0.1 }, declared, "m"
        ),
        preset: used({ temperature: 0, max_tokens: 9 }, { preset: "greedy", max_tokens: 9 }, declared, "m"),
      };
    }"""
    found = modules.evaluate(asked, {"m": {"temperature": 0.6, "top_p": 0.8}})
    assert found["start"] == 0.8
    assert found["neutral"] == {"top_p": 1.0}
    assert found["back"] == {}
    assert found["applied"] == {"seed": 1, "top_p": 1.0, "min_p": 0.1}
    model = "the server's defaults for the model"
    assert sorted((one["name"], one["value"], one["from"]) for one in found["used"]) == [
        ("explain", {}, "this page"),
        ("max_tokens", 9, "the server"),
        ("min_p", 0.1, "the request"),
        ("temperature", 0.6, model),
        ("top_p", 0.8, model),
    ]
    assert [one["from"] for one in found["preset"]] == ["the preset greedy", "the request"]


@pytest.mark.long
def test_a_curve_comes_with_a_selected_token(page: Page):
    say(page, "hello 20")
    one = knob(page, "top_p")
    assert one.locator(".curve").count() == 0
    page.locator(".tokens .t").nth(5).click()
    one.locator(".curve svg").wait_for()
    caption = one.locator("figcaption")
    assert caption.inner_text().startswith("Cuts nothing here.")
    one.locator("input[type=text]").fill("0.01")
    assert caption.inner_text().startswith("Keeps 1 token,")


@pytest.mark.long
def test_knobs_are_found_by_their_words(page: Page):
    page.get_by_label("Find a knob").fill("penal")
    names = {one.get_attribute("data-field") for one in page.locator(".knobs-panel .knob:visible").all()}
    assert {"presence_penalty", "repetition_penalty", "encoder_repetition_penalty"} <= names
    assert "top_p" not in names
    page.get_by_label("Find a knob").fill("no such thing")
    page.get_by_text("No knob of that name.").wait_for()


def test_each_number_says_what_a_higher_one_does(modules: Page):
    found = modules.evaluate(
        """async () => {
            const [{ HIGHER }, { NO_FIELDS, OWN, formOf }, state] = await Promise.all(
                ["words", "fields", "state"].map((name) => import(`./page/js/${name}.js`)));
            const numbers = state.fields.value.fields.filter((field) => !OWN.has(field.name)
                && ["chat", "completion"].some((mode) => ["number", "integer"].includes(formOf(field, mode))));
            return [Object.keys(HIGHER).sort(), numbers.map((field) => field.name).sort(), Object.values(HIGHER)];
        }"""
    )
    assert found[0] == found[1]
    assert all(len(words.split()) <= 6 for words in found[2])


def test_an_answer_has_a_limit_that_can_be_changed(page: Page):
    assert sent(page)["max_tokens"] == 512
    knob(page, "max_tokens").locator("input[type=text]").fill("40")
    assert sent(page)["max_tokens"] == 40
