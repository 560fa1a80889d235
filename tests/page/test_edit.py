"""Answers and turns that one edits, and answers with other knobs: branches beside the old ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import PHONE, Served, answered, say, sent
from page.fake_model import SPECIAL_IDS, bytes_of, tokenize

if TYPE_CHECKING:
    from playwright.sync_api import Page

ANSWER = ".turn.answer:last-of-type"
IDS = """() => import("/page/js/state.js").then(({ run }) => run.value.tokens.map(({ record }) => record.token_id))"""


def texts_of(page: Page) -> list[str]:
    """Return the tokens of the last answer."""
    return page.locator(f"{ANSWER} .t:not(.special)").all_text_contents()


def edit(page: Page, change: Callable[[str], str], branch: str) -> str:
    """Change the text of the last answer. branch: the label of the branches then. Return the new text."""
    page.locator(ANSWER).get_by_role("button", name="Edit").click()
    field = page.get_by_label("Edit the answer")
    text = change(field.input_value())
    field.fill(text)
    page.get_by_role("button", name="Save as a branch").click()
    page.wait_for_selector(f"{ANSWER} .siblings:has-text('{branch}')")
    answered(page)
    return text


def bodies(asked: list[tuple[str, Any]]) -> list[Any]:
    """Return the requests that generate."""
    return [body for path, body in asked if "completions" in path]


@pytest.mark.parametrize("form", ["Tokens", "Text"])
def test_an_edited_answer_is_a_branch_from_which_the_model_goes_on(page: Page, form: str):
    asked = sent(page)
    page.fill("[data-field=seed] input[type=text]", "5")
    page.fill("[data-field=max_tokens] input[type=text]", "20")
    say(page, "hello 60")
    before = page.evaluate(IDS)
    page.get_by_role("radio", name=form, exact=True).check(force=True)
    page.locator(ANSWER).get_by_role("button", name="Edit").click()
    old = page.get_by_label("Edit the answer").input_value()
    page.get_by_role("button", name="Leave it").click()
    head = b"".join(bytes(bytes_of(id)) for id in before[:8]).decode()
    assert old.startswith(head)
    page.locator(ANSWER).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the answer").fill(f"{head} stone bridge, I think")
    page.get_by_label("Edit the answer").press("Control+Enter")
    page.wait_for_selector(f"{ANSWER} .siblings:has-text('2/2')")
    page.get_by_role("radio", name="Tokens", exact=True).check(force=True)
    answered(page)
    forced = before[:8] + tokenize(" stone bridge, I think")
    assert page.evaluate(IDS) == forced
    assert "".join(texts_of(page)) == f"{head} stone bridge, I think"
    assert page.get_by_role("button", name="Branched at token 9").is_visible()
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(f"{ANSWER} .siblings:has-text('3/3')")
    answered(page)
    assert page.evaluate(IDS)[: len(forced)] == forced
    assert len(page.evaluate(IDS)) == len(forced) + 20
    first, second, third = bodies(asked)
    assert first["messages"] == second["messages"] == third["messages"]
    assert first["seed"] == second["seed"] == third["seed"] == 5
    say(page, "and on 3")
    assert bodies(asked)[-1]["messages"][1]["content"].startswith(f"{head} stone bridge, I think")


def test_thoughts_stay_where_the_text_is_edited(page: Page):
    say(page, "think 60")
    before = page.evaluate(IDS)
    end = before.index(SPECIAL_IDS["</think>"]) + 1
    edit(page, lambda _: "Nobody knows", "2/2")
    assert page.evaluate(IDS) == before[:end] + tokenize("Nobody knows")


def test_a_shorter_text_keeps_whole_characters(page: Page):
    say(page, "emoji 60")
    text = edit(page, lambda text: text[: text.index("漢") + 1], "2/2")
    assert "".join(texts_of(page)) == text
    text = edit(page, lambda text: text[: text.index("漢")], "3/3")
    assert "".join(texts_of(page)) == text


def test_raw_text_is_edited_alike(page: Page):
    asked = sent(page)
    page.get_by_label("Raw text").check(force=True)
    page.fill(".composer textarea", "Once 12")
    page.get_by_role("button", name="Continue").click()
    answered(page)
    edit(page, lambda _: "The river", "2/2")
    assert bodies(asked)[-1]["forced_token_ids"] == tokenize("The river")
    assert bodies(asked)[-1]["prompt"] == "Once 12"


def test_what_can_not_be_edited(page: Page):
    say(page, "tool")
    assert page.locator(ANSWER).get_by_role("button", name="Copy").is_visible()
    assert page.locator(ANSWER).get_by_role("button", name="Edit").count() == 0


def test_a_refused_edit_is_said_and_keeps_the_text(page: Page):
    say(page, "hello 6")
    page.route("**/tokenize", lambda route: route.fulfill(status=400, json={"error": {"message": "too long"}}))
    page.locator(ANSWER).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the answer").fill("else")
    page.get_by_role("button", name="Save as a branch").click()
    page.get_by_text("too long").wait_for()
    assert page.get_by_label("Edit the answer").input_value() == "else"
    page.get_by_label("Edit the answer").fill("")
    assert page.get_by_role("button", name="Save as a branch").is_disabled()


def test_again_takes_the_knobs_as_they_stand(page: Page):
    asked = sent(page)
    page.fill("[data-field=seed] input[type=text]", "5")
    say(page, "hello 12")
    page.fill("[data-field=temperature] input[type=text]", "0.3")
    page.fill("[data-field=top_k] input[type=text]", "4")
    page.locator(ANSWER).get_by_role("button", name="Again").click()
    page.wait_for_selector(f"{ANSWER} .siblings:has-text('2/2')")
    answered(page)
    first, second = bodies(asked)
    assert second == first | {"temperature": 0.3, "top_k": 4}


def test_an_answer_that_was_stopped_is_continued(page: Page):
    page.fill(".composer textarea", "hello 100 rate 30")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tokens [data-i='10']")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped by you.").wait_for()
    came = page.evaluate(IDS)
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(f"{ANSWER} .siblings:has-text('2/2')")
    answered(page)
    assert page.evaluate(IDS)[: len(came)] == came
    assert len(page.evaluate(IDS)) == 101


def test_all_that_can_be_done_with_an_answer_fits_a_phone(open_page: Callable[..., Page], served: Served):
    page = open_page(served.url, PHONE)
    say(page, "hello 40")
    edit(page, lambda _: "The river runs", "2/2")
    for name in ("Copy", "Edit", "Again", "Delete", "Continue", "Branched at token 3"):
        box = page.locator(ANSWER).get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
