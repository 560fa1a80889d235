"""A conversation on the page: it streams, ends, and is shown token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page.conftest import say

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_an_answer_streams_and_each_token_is_a_span(page: Page):
    say(page, "hello 40")
    spans = page.locator(".tokens .t")
    assert spans.count() == 41
    assert page.locator(".tokens .t.special").last.inner_text() == "<|end|>"
    levels = {
        name for span in spans.all() for name in (span.get_attribute("class") or "").split() if name.startswith("l")
    }
    assert len(levels) > 2
