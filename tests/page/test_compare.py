"""Side by side: two sets of parameters on one seed, streamed together; where they part, and the stage that did it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

DONE = ".side .tokens[aria-busy=false]"


def compare(page: Page, text: str, left: dict[str, str], right: dict[str, str]) -> None:
    """Runs both sides; the knobs are typed in."""
    page.locator("[data-field=top_p]").wait_for()
    page.get_by_role("tab", name="Side by side").click()
    page.get_by_label("Prompt for both").fill(text)
    for name, fields in (("Left", left), ("Right", right)):
        side = page.get_by_role("article", name=name)
        side.locator(".presets select").select_option("model alone")
        side.locator(".side-knobs > summary").click()
        for field, value in fields.items():
            side.locator(f"[data-field={field}] input[type=text]").fill(value)
        side.locator(".side-knobs > summary").click()
    page.get_by_role("button", name="Run both").click()
    page.locator(DONE).nth(1).wait_for()


def ids_of(page: Page, name: str) -> list[str]:
    return page.get_by_role("article", name=name).locator(".tokens .t").all_inner_texts()


@pytest.mark.long
def test_they_part_where_the_ladders_differ(page: Page):
    asked: list[dict[str, Any]] = []
    page.on("request", lambda r: asked.append(json.loads(r.post_data or "")) if "completions" in r.url else None)
    compare(page, "hello 80", {}, {"top_k": "1"})
    left, right = asked
    assert left["seed"] == right["seed"]
    assert left["messages"] == right["messages"]
    assert (left.get("top_k"), right["top_k"]) == (None, 1)
    texts = [ids_of(page, name) for name in ("Left", "Right")]
    first = next(i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b)
    verdict = page.locator(".verdict")
    assert f"They part at token {first + 1}:" in verdict.inner_text()
    page.get_by_text("In the right one top-k 1 cut").wait_for()
    assert "From there on the histories differ" in verdict.inner_text()
    marked = page.locator(".side .t.parts")
    assert marked.count() == 2
    assert {mark.get_attribute("data-i") for mark in marked.all()} == {str(first)}


@pytest.mark.long
def test_the_same_parameters_give_the_same(page: Page):
    compare(page, "hello 40", {"top_p": "0.9"}, {"top_p": "0.9"})
    page.get_by_text("The same, token for token.").wait_for()
    assert ids_of(page, "Left") == ids_of(page, "Right")
    assert page.locator(".side .t.parts").count() == 0


@pytest.mark.long
def test_a_token_is_selected_on_both_sides_until_they_part(page: Page):
    compare(page, "hello 80", {}, {"top_k": "1"})
    first = int(page.locator(".side .t.parts").first.get_attribute("data-i") or "")
    page.locator(".side").first.locator(".t").nth(0).click()
    assert page.locator(".side .t.sel").count() == 2
    page.locator(".side").first.locator(".t").nth(first + 1).click()
    assert page.locator(".side .t.sel").count() == 1


@pytest.mark.long
def test_a_refusal_stands_at_its_side(page: Page):
    page.get_by_role("tab", name="Side by side").click()
    page.get_by_label("Prompt for both").fill("refuse")
    page.get_by_role("button", name="Run both").click()
    page.locator(".side [role=alert]").nth(1).wait_for()
    assert "temperature must lie between" in page.locator(".side").first.inner_text()
    page.get_by_role("button", name="Run both").wait_for()


@pytest.mark.long
def test_stopping_ends_both(page: Page):
    page.get_by_role("tab", name="Side by side").click()
    page.get_by_label("Prompt for both").fill("hello 2000 rate 20")
    page.get_by_label("tokens", exact=True).fill("2000")
    page.get_by_role("button", name="Run both").click()
    page.locator(".side .tokens .t").nth(3).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator(DONE).nth(1).wait_for()
    assert len(ids_of(page, "Left")) < 2000


@pytest.mark.long
def test_hostile_text_is_text(page: Page):
    compare(page, "hostile", {}, {"top_k": "1"})
    assert page.locator(".compare script, .compare img, .compare b").count() == 0


def test_an_aborted_run_does_not_write_over_the_next(modules: Page):
    found = modules.evaluate(
        """async () => {
          const { comparison, runBoth } = await import("/page/js/compare.js");
          comparison.text.value = "hello 2000 rate 20";
          const first = runBoth();
          const { left } = comparison.runs;
          while (!left.value.tokens.length) await new Promise((resolve) => setTimeout(resolve, 20));
          comparison.text.value = "hello 30";
          comparison.length.value = 7;
          const second = runBoth();
          await first;
          const early = left.value.done;
          await second;
          const { request, tokens, done, error, finish } = left.value;
          return { early, text: request.body.messages.at(-1).content, count: tokens.length, done, error, finish };
        }"""
    )
    assert found == {"early": False, "text": "hello 30", "count": 7, "done": True, "error": None, "finish": "length"}
