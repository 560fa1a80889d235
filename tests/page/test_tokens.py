"""Tokens as they are shown: what they say, how they are walked, that no text of a model does anything."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from page.conftest import answered, say
from page.fake_model import EMOJI, HOSTILE, bytes_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "root => [...root.querySelectorAll('.t:not(.special)')].map(span => span.textContent).join('')"
SELECTED = "() => Number(document.querySelector('.t.sel')?.dataset.i ?? -1)"


def ids_of(page: Page) -> list[int]:
    """Of the last answer, as the page has them."""
    return page.evaluate(
        """async () => { const state = await import('/page/js/state.js');
        return state.current.value.run.value.tokens.map(token => token.record.token_id); }"""
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("words", ["hostile", "emoji", "think tool", "hostile emoji draft grammar"])
def test_the_text_is_the_bytes(page: Page, words: str):
    """Each character once, whole, whatever it is, with and without what is hidden drawn."""
    say(page, words)
    true = b"".join(bytes(bytes_of(id)) for id in ids_of(page)).decode(errors="replace")
    assert page.locator(".tokens").evaluate(TEXT) == true
    page.get_by_role("button", name="Show spaces and hidden characters").click()
    assert page.locator(".tokens").evaluate(TEXT) == true
    if "hostile" in words:
        assert all(text.strip() in true for text in HOSTILE)
    if "emoji" in words:
        assert all(text in true for text in EMOJI)


def test_text_of_the_model_is_no_markup(page: Page):
    say(page, "hostile draft")
    found = page.locator(".tokens").evaluate("root => root.querySelectorAll('script, img, b, a, style, iframe').length")
    assert found == 0
    for tab in ("Why", "Plots", "Branches", "Code"):
        page.locator(".tokens .t").nth(2).click()
        page.get_by_role("tab", name=tab).click()
        assert (
            page.locator("#panel-panel").evaluate("root => root.querySelectorAll('script, img, style, iframe').length")
            == 0
        )


@pytest.mark.long
def test_hidden_characters_are_named(page: Page):
    say(page, "hostile")
    named = "() => [...document.querySelectorAll('.tokens .char')].map(each => each.dataset.name)"
    acting = set(page.evaluate(named))
    assert {"RLO", "PDF", "LRI", "PDI", "U+0007", "U+001B"} <= acting  # what acts on others: always
    assert not acting & {"ZWSP", "BOM", "·"}
    page.get_by_role("button", name="Show spaces and hidden characters").click()
    assert {"RLO", "ZWSP", "BOM", "NBSP", "·", "⇥"} <= set(page.evaluate(named))


@pytest.mark.long
def test_right_to_left_stays_where_it_is(page: Page):
    """An override in the answer turns nothing outside itself: neighbours, the ladder's labels, the head."""
    say(page, "hostile")
    order = page.evaluate(
        """() => {
          const box = each => each.getBoundingClientRect();
          const boxes = [...document.querySelectorAll('.turn-head, .tokens, .foot')].map(box);
          const spans = [...document.querySelectorAll('.tokens .t')];
          const at = spans.findIndex(span => span.textContent === '\\u202eevil');
          const line = spans.slice(at - 2, at + 3).map(box);
          const after = (one, two) => two.top > one.top + 3 || two.left >= one.left - 1;
          const ascending = line.every((each, i) => !i || after(line[i - 1], each));
          return {inside: boxes.every(box => box.left >= 0 && box.right <= innerWidth), ascending, at};
        }"""
    )
    assert order["at"] > 0
    assert order["inside"]
    assert order["ascending"]


@pytest.mark.long
def test_a_character_of_several_tokens_can_be_pointed_at_in_each(page: Page):
    say(page, "emoji")
    parts = page.locator(".tokens .t.part")
    assert parts.count() > 10
    box = parts.first.bounding_box()
    assert box
    assert box["width"] >= 2
    assert box["height"] > 8
    parts.first.click()
    page.wait_for_selector(".ladder")
    assert page.locator(".ladder-title").inner_text().strip().startswith("‹")
    assert "\\xf0" in page.locator(".ladder-title h2").inner_text()


@pytest.mark.long
def test_cursor_keys_walk(page: Page):
    say(page, "draft 200")
    page.locator(".tokens").focus()
    walked = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        walked.append(page.evaluate(SELECTED))
    assert walked == [0, 1, 0, 200, 199, 0]
    page.keyboard.press("ArrowDown")
    below = page.evaluate(SELECTED)
    top = "i => [...document.querySelector(`[data-i='${i}']`).getClientRects()].at(-1).toJSON()"
    first, second = page.evaluate(top, 0), page.evaluate(top, below)
    assert second["top"] > first["bottom"] - 4
    assert abs(second["left"] - first["left"]) < 120
    for key in ("ArrowDown", "ArrowUp", "ArrowUp"):  # a walk up and down keeps its column
        page.keyboard.press(key)
    assert page.evaluate(SELECTED) == 0
    assert page.locator(".ladder").count() == 0
    page.keyboard.press("Enter")
    page.wait_for_selector(".ladder")
    assert "Token 1 of 201" in page.locator(".ladder .place").inner_text()
    page.keyboard.press("ArrowRight")  # walks on with the ladder open
    page.wait_for_selector(".place:has-text('Token 2 of 201')")
    page.keyboard.press("Escape")
    assert page.locator(".ladder").count() == 0
    assert page.evaluate(SELECTED) == -1
    assert page.evaluate("() => document.activeElement.classList.contains('tokens')")


@pytest.mark.long
def test_who_cannot_see_hears_the_token_and_the_end_but_not_each_token(page: Page):
    page.evaluate(
        """() => { window.heard = new Set();
          new MutationObserver(
            () => document.querySelectorAll('[aria-live]').forEach(each => heard.add(each.textContent)))
            .observe(document.body, {childList: true, subtree: true, characterData: true}); }"""
    )
    heard = "words => [...heard].some(text => text.includes(words))"
    page.fill(".composer textarea", "hello 4000 rate 20")
    page.keyboard.press("Enter")
    page.wait_for_function(heard, arg="is being written")
    page.wait_for_selector(".tokens [data-i='10']")
    page.get_by_role("button", name="Stop").click()
    answered(page)
    count = page.locator(".tokens .t").count()
    page.wait_for_function(heard, arg=f"The answer is there, {count} tokens")
    assert page.evaluate("() => [...heard].filter((text) => text).length") == 2
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "words => document.querySelector('.tokens-frame .heard').textContent.includes(words)",
        arg=f"Token 1 of {count}",
    )


KINDS = {"draft 60": ("accepted", "replaced"), "grammar 30": ("forced",)}


@pytest.mark.long
@pytest.mark.parametrize("words", KINDS)
def test_kinds_differ_by_more_than_colour(page: Page, words: str):
    say(page, words)
    line = "span => [getComputedStyle(span).textDecorationLine, getComputedStyle(span).textDecorationStyle].join(' ')"
    plain = page.locator(".tokens .o-drawn").first.evaluate(line)
    lines = [page.locator(f".tokens .o-{kind}").first.evaluate(line) for kind in KINDS[words]]
    assert len({plain, *lines}) == 1 + len(lines)
    legend = page.locator(".kinds").inner_text()
    assert {"accepted": "guessed", "replaced": "refused", "forced": "forced"}[KINDS[words][0]] in legend


@pytest.mark.long
def test_thoughts_and_calls_stand_apart(page: Page):
    say(page, "think tool")
    assert page.locator("details.thought summary").inner_text().startswith("Thought")
    assert page.locator(".section.tool .caption").inner_text() == "Tool call"
    page.locator("details.thought summary").click()
    assert not page.locator(".thought .t").first.is_visible()


CONTRAST = """() => {
  const channel = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const page = parse(getComputedStyle(document.body).backgroundColor);
  const ramps = ['surprise', 'probability', 'entropy'].map(scheme => {
    const root = document.createElement('div');
    root.className = `tokens s-${scheme}`;
    document.querySelector('.thread').append(root);
    const steps = [...Array(7).keys()].map(i => {
      const span = document.createElement('span');
      span.className = `t l${i}`;
      root.append(span);
      const style = getComputedStyle(span);
      const ground = parse(style.backgroundColor);
      return {ink: light(parse(style.color)), ground: light(ground[3] === 0 ? page : ground)};
    });
    root.remove();
    return steps;
  });
  return ramps;
}"""


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_steps_of_colour_can_be_read_and_told_apart_by_lightness_alone(page: Page, theme: str):
    """Contrast 4.5 everywhere; the steps' luminance goes one way, so that people who see no hues can order them."""
    say(page, "hello 3")
    page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
    for ramp in page.evaluate(CONTRAST):
        for step in ramp:
            low, high = sorted((step["ink"], step["ground"]))
            assert (high + 0.05) / (low + 0.05) >= 4.5
        grounds = [step["ground"] + 0.05 for step in ramp]
        ratios = [max(a, b) / min(a, b) for a, b in pairwise(grounds)]
        assert grounds in (sorted(grounds), sorted(grounds, reverse=True))
        assert min(ratios) > 1.06
