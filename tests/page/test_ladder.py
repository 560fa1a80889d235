"""The ladder: what it shows is the record's; why not; what if; more candidates."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import answered, say, sent
from page.fake_model import name_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

MORE = re.compile("^all .* candidates")  # there as soon as there are more than the few that came with the token
RECORD = """async () => { const state = await import('/page/js/state.js'); return state.record.value; }"""
WOULD = """async () => { const page = await import('/page/js/whatif.js'); return page.outcome.value?.record; }"""


def opened(page: Page, words: str, index: int, **params: Any) -> dict[str, Any]:
    """Says something with these parameters, opens the ladder of one token, and returns its record."""
    page.evaluate(
        "async params => { const state = await import('/page/js/state.js'); state.params.value = params; }", params
    )
    say(page, words)
    page.locator(f"[data-i='{index}']").click()
    page.get_by_role("button", name=MORE).wait_for()
    return page.evaluate(RECORD)


@pytest.mark.long
def test_it_asks_for_more_candidates_than_came_with_the_token(page: Page):
    asked = sent(page)
    record = opened(page, "hello 40", 12)
    bodies = dict(asked)
    assert bodies["/v1/chat/completions"]["explain"] == {"top": 3}
    body = bodies["/v1/explain"]
    assert body["positions"] == [12]
    assert body["explain"]["top"] > 3
    assert len(body["output_token_ids"]) == 13
    assert "stream" not in body
    assert len(record["ids"]) > 10


def test_each_step_is_a_rung_with_its_sentence_and_what_it_cut(page: Page):
    record = opened(page, "hello 40", 12, temperature=1.3, top_p=0.9, top_k=40, presence_penalty=0.5, seed=3)
    rungs = page.locator(".rung")
    heads = [head.split("\n")[0] for head in rungs.locator(".rung-head h3").all_inner_texts()]
    assert heads == ["The model", "Penalties", "Temperature", "Top-k", "Top-p", "The draw"]
    said = record["sentences"]
    expected = [said["model"], *said["edits"], *said["refinements"], said["draw"]]
    assert rungs.locator(".sentence").all_inner_texts() == expected
    page.get_by_role("button", name=MORE).click()
    top_p = page.get_by_role("region", name="Top-p")
    step = record["refinements"][-1]
    before = record["refinements"][-2]["probabilities"]
    cut = [i for i, p in enumerate(step["probabilities"]) if p is None and before[i] is not None]
    gone = [i for i, p in enumerate(before) if p is None]
    assert cut
    assert top_p.locator(".candidate.cut").count() == len(cut)
    assert top_p.locator(".candidate.gone").count() == len(gone)


def widths(page: Page, rung: str, selector: str) -> list[float]:
    """Of bars, or places of lines, as shares of their track."""
    return (
        page.get_by_role("region", name=rung)
        .locator(".candidate")
        .evaluate_all(
            """(rows, selector) => rows.map(row => {
          const [track, found] = [row.querySelector('.track'), row.querySelector(selector)];
          if (!found || !found.checkVisibility()) return -1;
          const [outer, inner] = [track.getBoundingClientRect(), found.getBoundingClientRect()];
          return (selector === '.bar' ? inner.width : inner.left + inner.width / 2 - outer.left) / outer.width; })""",
            selector,
        )
    )


@pytest.mark.long
def test_bars_are_the_probabilities_and_the_boundary_lies_between_kept_and_cut(page: Page):
    record = opened(page, "hello 40", 12, temperature=1.3, top_p=0.9, seed=3)
    page.get_by_role("button", name=MORE).click()
    for bar, p in zip(widths(page, "The model", ".bar"), record["model"]["probabilities"], strict=True):
        assert abs(bar - p) < 0.012
    step, before = record["refinements"][1], record["refinements"][0]["probabilities"]
    for bar, after, old in zip(widths(page, "Top-p", ".bar"), step["probabilities"], before, strict=True):
        assert abs(bar - (old if after is None else after)) < 0.012
    [boundary] = {round(place, 3) for place in widths(page, "Top-p", ".boundary")}
    assert abs(boundary - step["boundary"]) < 0.012
    page.get_by_label("log", exact=True).check(force=True)
    lines = widths(page, "Top-p", ".boundary")
    assert abs(lines[0] - (1 + math.log10(step["boundary"]) / 6)) < 0.012  # the axis begins at 1e-6
    for line, bar, after in zip(lines, widths(page, "Top-p", ".bar"), step["probabilities"], strict=True):
        assert after is not None or bar < line + 0.01  # what was cut does not reach the line


@pytest.mark.long
def test_why_not_this_one(page: Page):
    record = opened(page, "hello 40", 12, top_p=0.9, seed=3)
    page.get_by_role("button", name=MORE).click()
    reasons = record["sentences"]["why_not"]
    for i in [i for i, reason in enumerate(reasons) if reason][:3]:
        page.get_by_role("region", name="The draw").locator(".candidate-button").nth(i).click()
        assert reasons[i] in page.locator(".why").inner_text()
        assert page.get_by_role("button", name="instead").is_visible()


@pytest.mark.long
def test_what_a_token_ended_is_said_in_words(page: Page):
    opened(page, "hello 40", 4, max_tokens=5)
    assert page.locator(".place").inner_text().endswith("the answer was cut after it: the limit of tokens.")
    page.evaluate(
        """async () => { const { run } = (await import('/page/js/state.js')).current.value;
          run.value.tokens[2].record.ended = 'thinking_token_budget'; }"""
    )
    page.locator("[data-i='2']").click()
    page.wait_for_selector(".place:has-text('Token 3 of 5')")
    assert "the thought has used up its budget" in page.locator(".place").inner_text()
    assert "the answer" not in page.locator(".place").inner_text()


@pytest.mark.long
def test_a_token_of_ones_own_is_looked_up(page: Page):
    record = opened(page, "hello 40", 12, top_p=0.9, seed=3)
    names = [name_of(id) for id in record["ids"]]
    wanted = next(name for name in (" heron", " reed.", " valley", " Paris") if name not in names)
    page.get_by_label("Another token").fill(wanted)
    page.get_by_role("button", name="Why not?").click()
    model = page.get_by_role("region", name="The model")
    model.locator(".candidate", has_text=wanted.strip()).wait_for()
    assert wanted in page.evaluate(RECORD)["tokens"]


@pytest.mark.long
def test_the_winner_and_the_margin_are_those_of_the_scores(page: Page):
    record = opened(page, "hello 40", 12, temperature=1.5, seed=5)
    draw = page.get_by_role("region", name="The draw")
    places = widths(page, "The draw", ".dot")
    assert (
        max(places)
        == places[draw.locator(".candidate").evaluate_all("rows => rows.findIndex(r => r.matches('.winner'))")]
    )
    assert draw.locator(".candidate.winner").count() == draw.locator(".candidate.runner-up").count() == 1
    assert f"{record['draw']['margin']:.2f}" in page.locator(".numbers").inner_text()


@pytest.mark.long
def test_what_if_a_knob_stood_elsewhere(page: Page):
    """The server says what would have come under the same noise; the ladder shows it, and one can go on from there."""
    asked = sent(page)
    record = opened(page, "hello 60", 20, temperature=1.8, seed=11)
    page.locator(".whatif summary").click()
    temperature = page.locator(".whatif").get_by_label("temperature, slider")
    assert temperature.input_value() == "1.8"
    temperature.fill("0.1")
    page.wait_for_selector(".verdict-box")
    would = page.evaluate(WOULD)
    body = asked[-1][1]
    assert body["what_if"] == {"temperature": 0.1}
    assert body["temperature"] == 1.8
    assert would["key"] == record["key"]
    winner = would["ids"].index(would["draw"]["winner"])
    assert would["tokens"][winner] in page.locator(".verdict-box .token-label").text_content()
    assert page.get_by_text("what if", exact=True).is_visible()
    page.locator(".whatif").get_by_label("temperature as it was").click()
    page.wait_for_selector(".verdict-box", state="detached")
    page.locator(".whatif").get_by_label("top_p", exact=True).fill("7")
    page.locator(".whatif").get_by_label("top_p", exact=True).press("Tab")
    page.locator(".try-note", has_text="top_p must be a number in [0, 1]").wait_for()


@pytest.mark.long
def test_what_would_have_come_can_be_followed(page: Page):
    asked = sent(page)
    opened(page, "hello 60", 20, temperature=1.8, seed=11)
    place = next(i for i in range(20, 60) if other_when_cold(page, i))
    page.get_by_role("button", name="Go on from there").click()
    page.wait_for_selector(".siblings:has-text('2/2')")
    answered(page)
    body = asked[-1][1]
    assert len(body["forced_token_ids"]) == place + 1
    assert body["temperature"] == 0.05
    assert body["seed"] == 11


def other_when_cold(page: Page, index: int) -> bool:
    """Whether another token would have come at this place with a temperature of 0.05; its ladder stays open."""
    page.locator(f"[data-i='{index}']").click()
    page.wait_for_selector(f".place:has-text('Token {index + 1} of')")
    if not page.locator(".whatif").evaluate("details => details.open"):
        page.locator(".whatif summary").click()
    page.locator(".whatif").get_by_label("temperature, slider").fill("0.05")
    page.wait_for_selector(".verdict-box")
    return page.locator(".verdict-box.other").count() == 1


@pytest.mark.long
def test_a_refused_guess_is_told(page: Page):
    say(page, "draft 60")
    page.locator(".tokens .o-replaced").first.click()
    page.get_by_role("button", name=MORE).wait_for()
    record = page.evaluate(RECORD)
    assert record["origin"] == "replaced"
    text = page.locator(".draft").inner_text()
    assert "ngram guessed" in text
    assert "refused it" in text
    assert name_of(record["draft"]["token"]).strip() in text


@pytest.mark.long
def test_a_token_of_a_comparison_has_its_ladder_too(page: Page):
    """Without the way to branch: a comparison is no part of the conversation."""
    page.get_by_role("tab", name="Side by side").click()
    page.get_by_label("Prompt for both").fill("hello 40")
    page.get_by_role("button", name="Run both").click()
    page.wait_for_function("() => document.querySelectorAll('.side .tokens[aria-busy=false]').length === 2")
    page.locator(".side .t[data-i='3']").last.click()
    page.get_by_role("button", name=MORE).wait_for()
    assert "Token 4 of" in page.locator(".place").inner_text()
    page.locator(".rung").first.locator(".candidate:not(.came) .candidate-button").first.click()
    assert page.locator(".why").is_visible()
    assert page.get_by_role("button", name="instead").count() == 0
    page.get_by_role("tab", name="Conversation").click()
    assert page.locator(".ladder").count() == 0


def test_titles_are_the_servers_or_made_from_the_name(modules: Page):
    asked = "async (methods) => { const m = await import('./page/js/rungs.js'); return methods.map(m.titleOf); }"
    wanted = {
        "model": "The model",
        "draw": "The draw",
        "draft": "After a refused guess",
        "grammar": "Grammar",
        "dry": "DRY",
        "top_n_sigma": "Top-nσ",
        "p_less": "p-less",
        "epsilon_cutoff": "Epsilon cutoff",
        "unknown_here": "Unknown here",
    }
    assert modules.evaluate(asked, [*wanted]) == [*wanted.values()]


@pytest.mark.long
def test_what_is_typed_stays_while_an_answer_streams(page: Page):
    page.fill(".composer textarea", "hello 4000 rate 50")
    page.keyboard.press("Enter")
    page.locator(".tokens [data-i='3']").click()
    page.locator(".whatif summary").click()
    field = page.locator(".whatif").get_by_label("top_p", exact=True)
    field.fill("")
    field.press_sequentially("0.9", delay=150)
    assert field.input_value() == "0.9"
    assert page.locator(".tokens").get_attribute("aria-busy") == "true"
    page.get_by_role("button", name="Stop").click()
