"""Answers that were coming when the page was left, or when the connection broke, go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import Served, answered, say, sent
from page.fake_streams import KeptStreams
from page.test_history import count_stored

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOKENS = ".turn.answer:last-of-type .tokens .t"
TIMES = """() => import("/page/js/state.js").then(({ run }) => run.value.tokens.map(({ time_ms }) => time_ms))"""


def texts_of(page: Page) -> list[str]:
    """Return the tokens of the last answer."""
    return page.locator(TOKENS).all_text_contents()


def begin(page: Page, text: str, tokens: int) -> None:
    """Send a text and wait for the first tokens of the answer."""
    page.fill(".composer textarea", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(f".tokens [data-i='{tokens}']")


@pytest.mark.parametrize("raw", [False, True])
def test_a_reload_in_the_middle_of_an_answer_goes_on(page: Page, raw: bool):
    page.fill("[data-field=seed] input[type=text]", "7")
    page.get_by_label("Raw text").set_checked(raw, force=True)
    page.fill(".composer textarea", "emoji think 200 rate 60")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".tokens [data-i='60']")
    times = page.evaluate(TIMES)[:60]
    page.reload()
    page.wait_for_selector(TOKENS)
    assert page.locator(TOKENS).count() >= 60  # what had come is there before the rest
    page.wait_for_selector(".tokens [data-i='150']")
    page.reload()
    answered(page)
    resumed = texts_of(page)
    assert page.evaluate(TIMES)[:60] == times
    content = page.evaluate("import('/page/js/state.js').then(({ run }) => run.value.content)")
    assert count_stored(page) == 2
    page.get_by_role("button", name="Again").click()
    page.wait_for_selector(".siblings:has-text('2/2')")
    answered(page)
    assert texts_of(page) == resumed
    assert page.evaluate("import('/page/js/state.js').then(({ run }) => run.value.content)") == content


def test_an_answer_that_ended_meanwhile_is_there_after_a_reload(page: Page):
    begin(page, "hello 100 rate 100", 20)
    url = page.url
    page.goto("about:blank")
    page.wait_for_timeout(1500)
    page.goto(url)
    answered(page)
    assert len(texts_of(page)) == 101
    assert page.locator(".ending").count() == 0


def test_without_its_events_what_came_is_shown(page: Page, streams: KeptStreams):
    begin(page, "hello 4000 rate 100", 150)
    url = page.url
    page.goto("about:blank")  # a page that is there would see the end of its connection, and say so
    streams.forget()
    page.goto(url)
    page.get_by_text("Interrupted").wait_for()
    assert page.locator(TOKENS).count() > 150
    assert page.locator(".turn .error").count() == 0
    say(page, "hello 3")


def test_a_connection_that_breaks_is_made_again(page: Page):
    say(page, "hello 60 rate 50 drop")
    assert len(texts_of(page)) == 61
    assert page.locator(".turn .error").count() == 0


def test_stop_ends_the_request_before_and_after_a_reload(page: Page, streams: KeptStreams):
    asked = sent(page)
    begin(page, "hello 4000 rate 50", 20)
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped by you.").wait_for()
    begin(page, "more 4000 rate 50", 20)
    page.reload()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped by you.").nth(1).wait_for()
    assert page.locator(TOKENS).count() >= 20
    assert len(asked) == 2
    assert [name in streams.cancelled for name in names_of(page)] == [True, True]


def names_of(page: Page) -> list[Any]:
    """Return the names of the requests behind all answers."""
    look = """() => import("/page/js/state.js").then(({ tree }) =>
        Object.values(tree.value.nodes).filter(({ run }) => run).map(({ run }) => run.value.stream))"""
    return page.evaluate(look)


def test_a_server_that_keeps_no_events_is_not_asked_to(open_page: Callable[..., Page], served: Served):
    page = open_page(served.url)
    page.route("**/page/fields.json", lambda route: route.fulfill(json=route.fetch().json() | {"resumable": False}))
    page.reload()
    page.wait_for_selector("[data-field=top_p]")
    asked = sent(page)
    say(page, "hello 3")
    assert "resumable" not in asked[0][1]
