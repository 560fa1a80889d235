"""A conversation on the page: what is sent, how it streams and ends, what happens when it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from page import fake_server
from page.conftest import Served, a_port, answered, say, sent

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.long
def test_an_answer_streams_and_each_token_is_a_span(page: Page):
    say(page, "hello 40")
    assert page.locator(".tokens .t").count() == 41
    assert page.locator(".tokens .t.special").last.inner_text() == "<|end|>"
    spans = page.locator(".tokens .t").evaluate_all("spans => spans.map(span => span.className)")
    assert len({name for names in spans for name in names.split() if name[0] == "l"}) > 2


def test_what_is_sent(page: Page):
    asked = sent(page)
    page.locator(".system summary").click()
    page.get_by_label("System prompt").last.fill("Be brief.")
    say(page, "hello 5")
    say(page, "again 4")
    first, second = [body for path, body in asked if path == "/v1/chat/completions"]
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello 5"}]
    assert first["stream"] is True
    assert first["explain"]["top"] >= 1
    assert isinstance(first["seed"], int)
    answer = second["messages"][2]
    shown = page.locator(".tokens").first.evaluate(
        "root => [...root.querySelectorAll('.t:not(.special)')].map(span => span.textContent).join('')"
    )
    assert answer == {"role": "assistant", "content": shown}
    assert second["messages"][3] == {"role": "user", "content": "again 4"}


@pytest.mark.long
def test_raw_text_is_continued(page: Page):
    asked = sent(page)
    page.get_by_label("Raw text").check(force=True)
    page.fill(".composer textarea", "Once 12")
    page.get_by_role("button", name="Continue").click()
    answered(page)
    [(path, body)] = [each for each in asked if "completions" in each[0]]
    assert path == "/v1/completions"
    assert body["prompt"] == "Once 12"
    assert "messages" not in body
    assert page.locator(".tokens .t").count() == 13


@pytest.mark.long
def test_stop_ends_it_and_keeps_what_came(page: Page):
    page.fill(".composer textarea", "hello 4000 rate 20")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tokens [data-i='20']")
    page.get_by_role("button", name="Stop").click()
    answered(page)
    count = page.locator(".tokens .t").count()
    assert 20 < count < 4000
    assert page.get_by_text("Stopped by you.").is_visible()
    say(page, "and on 3")
    assert page.locator(".turn.answer").count() == 2


@pytest.mark.long
def test_an_edited_turn_is_a_branch_beside_the_old_one(page: Page):
    say(page, "first 6")
    page.locator(".said").get_by_role("button", name="Edit").click()
    page.get_by_label("Edit what was said").fill("second 8")
    page.get_by_role("button", name="Send again").click()
    answered(page)
    assert page.locator(".said-text").inner_text() == "second 8"
    assert page.locator(".tokens .t").count() == 9
    page.get_by_role("button", name="Branch before").click()
    assert page.locator(".said-text").inner_text() == "first 6"
    assert page.locator(".tokens .t").count() == 7


@pytest.mark.long
def test_again_answers_the_same_turn_with_another_seed(page: Page):
    asked = sent(page)
    say(page, "first 6")
    page.get_by_role("button", name="Again").click()
    page.wait_for_selector(".siblings:has-text('2/2')")
    answered(page)
    one, two = [body for path, body in asked if path == "/v1/chat/completions"]
    assert one["messages"] == two["messages"]
    assert one["seed"] != two["seed"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("hello fail", "The engine is gone."),
        ("hello refuse", "temperature must lie between 0 and 1000000, got -1.0"),
        (
            "hello break rate 50",
            "The connection to the server broke before the answer ended. Is the server still running?",
        ),
    ],
)
def test_what_fails_is_said(page: Page, words: str, message: str):
    asked = sent(page)
    say(page, words, whole=False)
    assert page.locator(".error").inner_text() == message
    say(page, "and now 4")
    assert page.locator(".turn.answer").last.locator(".t").count() == 5
    messages = [body for path, body in asked if path == "/v1/chat/completions"][-1]["messages"]
    said = [message for message in messages if message["role"] == "assistant"]
    assert all(message["content"] for message in said)
    assert len(said) == (0 if words == "hello refuse" else 1)


def choose_kind(page: Page, name: str) -> None:
    """Choose the kind of the next conversation."""
    page.get_by_label(name).check(force=True)


def continue_text(page: Page, text: str) -> None:
    """Send a raw text and wait for its continuation."""
    page.fill(".composer textarea", text)
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(f".said-text:has-text('{text}')")
    answered(page)


@pytest.mark.long
def test_the_kind_follows_the_conversation(page: Page):
    """A chat after a raw text is a conversation of its own. A branch that is walked to brings its kind along."""
    asked = sent(page)
    choose_kind(page, "Raw text")
    continue_text(page, "Once 12")
    choose_kind(page, "Chat")
    assert page.locator(".turn").count() == 0
    say(page, "hello 5")
    page.evaluate("import('/page/js/state.js').then((state) => state.walk(state.tree.value.roots[0]))")
    page.wait_for_selector(".said-text:has-text('Once 12')")
    assert page.get_by_label("Raw text").is_checked()
    continue_text(page, "Twice 6")
    assert [path for path, _ in asked] == ["/v1/completions", "/v1/chat/completions", "/v1/completions"]


@pytest.mark.long
def test_a_copy_has_the_text_alone(page: Page):
    say(page, "hello 8")
    assert page.locator(".t.special").count() == 1
    copied = page.locator(".tokens").evaluate(
        "root => (getSelection().selectAllChildren(root), getSelection().toString())"
    )
    assert copied.strip()
    assert "<|end|>" not in copied


@pytest.mark.long
def test_a_tool_is_called_and_its_result_goes_back(page: Page):
    asked = sent(page)
    say(page, "tool")
    assert page.get_by_text("Calls a tool.").is_visible()
    assert page.locator(".section.tool .t").count() > 2
    page.fill(".composer textarea", "20 degrees 5")
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn.answer >> nth=1")
    answered(page)
    messages = [body for path, body in asked if path == "/v1/chat/completions"][1]["messages"]
    assert messages[1]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris", "unit": "celsius"}
    assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "20 degrees 5"}


@pytest.mark.long
def test_a_key_is_asked_for_and_stays_in_the_tab(open_page: Callable[..., Page]):
    with Served(fake_server.create("secret"), a_port()) as served:
        page = open_page(served.url)
        asked: list[Any] = []
        page.on("request", lambda request: asked.append(request.headers.get("authorization")))
        page.get_by_role("dialog").wait_for()
        page.keyboard.type("wrong")
        assert page.locator(".composer textarea").input_value() == ""
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        hit = """field => { const { x, y, width, height } = field.getBoundingClientRect();
            return document.elementFromPoint(x + width / 2, y + height / 2).tagName; }"""
        assert page.locator(".composer textarea").evaluate(hit) == "DIALOG"
        for _ in range(6):
            page.keyboard.press("Tab")
            assert page.evaluate(
                "document.activeElement.closest('dialog') !== null || document.activeElement === document.body"
            )
        page.get_by_role("textbox", name="API key").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("text=The server did not take this key.")
        page.get_by_role("dialog").get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use this key").click()
        page.get_by_role("dialog").wait_for(state="detached")
        page.wait_for_selector(".model:has-text('fake')")
        say(page, "hello 5")
        assert asked[-1] == "Bearer secret"
        assert page.evaluate("() => JSON.stringify(localStorage)").count("secret") == 0
        assert page.evaluate("() => document.cookie") == ""
        assert "secret" not in page.url


@pytest.mark.long
def test_an_answer_that_was_cut_is_continued(page: Page):
    """The continuation has the tokens that a larger limit would have given, and the same again."""
    asked = sent(page)
    page.fill("[data-field=max_tokens] input[type=text]", "10")
    page.fill("[data-field=seed] input[type=text]", "5")
    say(page, "hello 40")
    for count in (20, 30):
        page.get_by_role("button", name="Continue").click()
        page.wait_for_selector(f".facts:has-text('{count} tokens')")
        answered(page)
    page.fill("[data-field=max_tokens] input[type=text]", "30")
    texts = page.locator(".turn.answer .tokens .t").all_inner_texts()
    page.get_by_role("button", name="Again").click()
    page.wait_for_selector(".siblings:has-text('4/4')")
    answered(page)
    assert page.locator(".turn.answer .tokens .t").all_inner_texts() == texts
    limits = [(body["max_tokens"], len(body.get("forced_token_ids", ()))) for path, body in asked if "chat" in path]
    assert limits == [(10, 0), (20, 10), (30, 20), (30, 0)]


@pytest.mark.long
def test_an_answer_is_copied_and_deleted(open_page: Callable[..., Page], served: Served):
    page = open_page(served.url, permissions=["clipboard-read", "clipboard-write"])
    say(page, "hello 8")
    text = "".join(page.locator(".tokens .t:not(.special)").all_text_contents())
    page.get_by_role("button", name="Copy").click()
    page.wait_for_selector("text=Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == text
    page.get_by_role("button", name="Delete").click()
    assert page.locator(".turn").count() == 1
    say(page, "and now 4")
