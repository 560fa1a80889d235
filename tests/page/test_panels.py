"""Knobs, plots, code, comparison and live view together: for everybody, on a phone, with the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from page.conftest import DESK, PHONE, Served, say
from page.test_accessible import ready, serious

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["ready"]  # a fixture

WIDE = "() => document.documentElement.scrollWidth - innerWidth"


def open_knobs(page: Page) -> None:
    """With every group open."""
    if not page.locator(".knobs-panel").is_visible():
        page.get_by_role("button", name="Parameters", exact=True).click()
    page.locator("[data-field=top_p]").wait_for()
    page.evaluate("document.querySelectorAll('.knobs-panel details').forEach((each) => (each.open = true))")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_nothing_serious_and_nothing_too_wide(ready: Callable[..., Page], size: dict[str, int], dark: bool):
    page = ready(size=size, dark=dark)
    found: dict[str, list[str]] = {}

    def look(name: str) -> None:
        found[name] = serious(page)
        assert page.evaluate(WIDE) <= 0, name

    say(page, "draft 40")
    page.locator(".tokens .t").nth(3).click()
    for tab, there in (("Plots", ".plot canvas"), ("Code", ".code pre")):
        page.get_by_role("tab", name=tab).click()
        page.locator(there).first.wait_for()
        look(tab)
    page.get_by_label("Close the panel").click()
    open_knobs(page)
    page.locator("[data-field=top_p] input[type=text]").fill("2")
    look("knobs")
    page.locator("[data-field=top_p] input[type=text]").fill("0.5")
    if size == PHONE:
        page.get_by_label("Close the parameters").click()
    page.get_by_role("tab", name="Side by side").click()
    page.get_by_role("button", name="Run both").click()
    page.locator(".side .tokens[aria-busy=false]").nth(1).wait_for()
    page.locator(".side-knobs summary").first.click()
    page.locator(".side-knobs [data-field=top_p]").first.wait_for()
    look("side by side")
    page.get_by_role("tab", name="Server").click()
    page.locator(".step-parts h3").wait_for()
    look("server")
    assert not {view: violations for view, violations in found.items() if violations}


def test_with_the_keyboard_alone(page: Page):
    """A knob is changed, a prompt sent, a token opened, its plot walked, the code read: no mouse."""
    page.locator("[data-field=top_p]").wait_for()
    page.get_by_label("top_p, slider").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('[data-field=top_p] input[type=text]').value === '0.99'")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("0.8")
    assert page.locator("[data-field=top_p]").get_attribute("class") == "knob given"
    page.locator(".composer textarea").focus()
    page.keyboard.type("hello 20")
    page.keyboard.press("Enter")
    tokens = page.locator(".turn.answer:last-of-type .tokens[aria-busy=false]")
    tokens.wait_for()
    tokens.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Why").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("slider", name="Surprise and entropy").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".tokens .t.sel").get_attribute("data-i") == "1"


@pytest.mark.long
def test_a_theme_reaches_the_plots(open_page: Callable[..., Page], served: Served):
    """The colours of a canvas follow the theme while it is drawn."""
    page = open_page(served.url)
    say(page, "hello 20")
    page.locator(".tokens .t").nth(3).click()
    page.get_by_role("tab", name="Plots").click()
    drawn, bright = (
        """() => { const c = document.querySelector('.plot[data-plot=surprise] canvas');
          if (!c) return false;
          const seen = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          for (let i = 0; i < seen.length; i += 4) if (PIXEL) return true;
          return false; }""".replace("PIXEL", pixel)
        for pixel in ("seen[i + 3] > 200", "seen[i + 3] > 200 && seen[i] > 220 && seen[i + 2] < 120")
    )
    page.wait_for_function(drawn)
    assert not page.evaluate(bright)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(bright)


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_panels_are_always_in_the_bar(open_page: Callable[..., Page], served: Served, size: dict[str, int]):
    page = open_page(served.url, size=size)
    bar = page.locator(".bar-panels")
    assert bar.locator("button, label").all_inner_texts() == ["Why", "Plots", "Branches", "Code", "History", "Import"]
    for name in ("Why", "Plots", "Branches", "Code"):
        assert bar.get_by_role("button", name=name).is_visible()
    if size == DESK:
        page.get_by_role("tab", name="Server").click()
        bar.get_by_role("button", name="Branches").click()
        assert page.get_by_role("tab", name="Branches").get_attribute("aria-selected") == "true"
        bar.get_by_role("button", name="Branches").click()
        assert not page.locator(".side-panel").is_visible()
