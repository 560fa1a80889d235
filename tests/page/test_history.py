"""Conversations stay in the browser: after a reload, in the list, and not where they should not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from page import fake_server
from page.conftest import CHROMIUM, PATIENCE_MS, Served, a_port, answered, say

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# the page writes in a task of its own: timers fire in order, and so do transactions
STORED = """() => new Promise((resolve) => setTimeout(resolve, 20)).then(() => new Promise((resolve) => {
    const asked = indexedDB.open("tailrace", 1);
    asked.onsuccess = () => {
        const all = asked.result.transaction(["turns"]).objectStore("turns").getAll();
        all.onsuccess = () => (asked.result.close(), resolve(all.result));
    };
}))"""
TEXT = "() => document.querySelector('.thread').innerText"


def count_stored(page: Page) -> int:
    """Return the number of turns in the browser."""
    return len(page.evaluate(STORED))


def open_history(page: Page) -> None:
    """Show the list of conversations."""
    page.locator(".bar-panels").get_by_role("button", name="History").click()
    page.get_by_label("Find a conversation").wait_for()


def test_a_reload_shows_what_was_there(page: Page):
    page.locator(".system summary").click()
    page.get_by_label("System prompt").last.fill("Be brief.")
    page.fill("[data-field=top_p] input[type=text]", "0.9")
    say(page, "hello 30")
    say(page, "again 200")
    page.get_by_role("button", name="Again").last.click()
    page.wait_for_selector(".siblings:has-text('2/2')")
    answered(page)
    before = page.evaluate(TEXT)
    assert count_stored(page) == 5
    page.reload()
    page.wait_for_selector(".turn.answer >> nth=1")
    assert page.evaluate(TEXT) == before
    assert page.locator("[data-field=top_p] input[type=text]").input_value() == "0.9"
    assert page.get_by_label("System prompt").last.input_value() == "Be brief."
    page.get_by_role("button", name="Branch before").click()
    page.locator(".turn.answer").last.locator(".t").nth(5).click()
    page.locator(".rung").first.wait_for()
    say(page, "and on 5")


@pytest.mark.parametrize("delay_ms", [0, 30, 200, 700, 1500])
def test_an_answer_that_has_ended_is_stored_at_once(page: Page, delay_ms: int):
    say(page, "hello 30")
    say(page, "again 40 rate 100")
    before = page.evaluate(TEXT)
    page.wait_for_timeout(delay_ms)
    page.reload()
    page.wait_for_selector(".turn.answer >> nth=1")
    assert page.evaluate(TEXT) == before


def test_a_browser_that_is_killed_has_what_was_there(browser: Browser, served: Served, tmp_path: Path):
    """Without any event that says that the page ends."""
    kind = browser.browser_type
    options: dict[str, Any] = {"executable_path": CHROMIUM, "args": ["--no-sandbox"], "timeout": PATIENCE_MS}
    context = kind.launch_persistent_context(tmp_path, **options)
    page = context.new_page()
    page.goto(served.url)
    page.wait_for_selector(".composer")
    say(page, "hello 30")
    say(page, "again 40")
    before = page.evaluate(TEXT)
    assert count_stored(page) == 4
    with context.expect_event("close", timeout=PATIENCE_MS):
        kill_browser(tmp_path)
    with kind.launch_persistent_context(tmp_path, **options) as context:
        page = context.new_page()
        page.goto(served.url)
        page.wait_for_selector(".turn.answer >> nth=1")
        assert page.evaluate(TEXT) == before


def kill_browser(folder: Path) -> None:
    """Kill the browser with this profile, as a machine that is out of memory does."""
    host, pid = os.readlink(folder / "SingletonLock").rsplit("-", 1)
    assert host
    os.kill(int(pid), signal.SIGKILL)


def test_what_could_not_be_written_is_written_later(page: Page):
    """The first transactions fail. No change comes after them."""
    page.evaluate("""() => {
        const { prototype } = IDBTransaction;
        const { commit } = prototype;
        window.failing = true;
        prototype.commit = function () { window.failing ? this.abort() : commit.call(this); };
    }""")
    say(page, "hello 3")
    open_history(page)
    page.get_by_text("This browser does not keep the conversations.").wait_for()
    page.evaluate("() => { window.failing = false; }")
    page.get_by_text("This browser does not keep the conversations.").wait_for(state="detached")
    before = page.evaluate(TEXT)
    page.reload()
    page.wait_for_selector(".turn.answer")
    assert page.evaluate(TEXT) == before


def test_conversations_are_found_renamed_and_deleted(page: Page):
    for text in ("hello 3", "goodbye 4", "thanks 5"):
        say(page, text)
        page.get_by_role("button", name="New conversation").click()
    open_history(page)
    names = page.locator(".history .excerpt")
    assert names.all_inner_texts() == ["thanks 5", "goodbye 4", "hello 3"]
    page.get_by_label("Find a conversation").fill("GOODBYE")
    assert names.all_inner_texts() == ["goodbye 4"]
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Name of the conversation").fill("A farewell")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("Find a conversation").fill("")
    page.get_by_role("button", name="Delete").first.click()
    page.get_by_role("button", name="Really delete?").click()
    assert names.all_inner_texts() == ["A farewell", "hello 3"]
    assert count_stored(page) == 4
    page.reload()
    open_history(page)
    assert names.all_inner_texts() == ["A farewell", "hello 3"]
    names.last.click()
    assert page.locator(".said-text").inner_text() == "hello 3"


@pytest.mark.long
def test_nothing_is_stored_for_a_server_with_keys_unless_the_reader_wants_it(open_page: Callable[..., Page]):
    with Served(fake_server.create("secret"), a_port()) as served:
        page = open_page(served.url)
        page.get_by_role("dialog").get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector(".model:has-text('fake')")
        say(page, "hello 5")
        assert count_stored(page) == 0
        open_history(page)
        page.get_by_label("Keep conversations in this browser").check()
        assert count_stored(page) == 2


@pytest.mark.long
def test_a_browser_that_stores_nothing_is_said(open_page: Callable[..., Page], served: Served):
    page = open_page(served.url)
    page.add_init_script("indexedDB.open = () => { throw new DOMException('no', 'SecurityError'); }")
    page.reload()
    page.wait_for_selector(".composer")
    say(page, "hello 3")
    open_history(page)
    assert page.get_by_text("This browser does not keep the conversations.").is_visible()
