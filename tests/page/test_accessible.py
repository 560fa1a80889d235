"""axe-core finds nothing serious, in any view, theme or width."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from page import axe
from page.conftest import DESK, PHONE, Served, say

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(each => ['serious', 'critical'].includes(each.impact))
  .map(each => `${each.id}: ${each.nodes.slice(0, 3).map(node => node.html.slice(0, 200) + node.failureSummary)}`)"""


def serious(page: Page) -> list[str]:
    """What axe finds. The script goes in past the page's policy, which lets nothing else in."""
    page.evaluate(axe.SCRIPT.read_text())
    return page.evaluate(RUN)


@pytest.fixture
def ready(open_page: Callable[..., Page], served: Served) -> Callable[..., Page]:
    if not axe.SCRIPT.is_file():
        pytest.skip("needs axe-core, which make test-page fetches")
    return lambda **more: open_page(served.url, **more)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_nothing_serious(ready: Callable[..., Page], size: dict[str, int], dark: bool):
    page = ready(size=size, dark=dark)
    found: dict[str, Any] = {"welcome": serious(page)}
    say(page, "think draft hostile tool")
    page.get_by_role("button", name="Show spaces and hidden characters").click()
    for scheme in ("Probability", "Entropy", "Surprise"):
        page.get_by_label(scheme, exact=True).check(force=True)
        found[scheme] = serious(page)
    page.locator(".tokens .o-replaced").first.click()
    page.wait_for_selector(".rung.draw")
    page.locator(".whatif summary").click()
    page.locator(".whatif").get_by_label("temperature, slider").fill("0.3")
    page.wait_for_selector(".verdict-box")
    page.locator(".rung .candidate:not(.came) .candidate-button").first.click()
    found["ladder"] = serious(page)
    page.get_by_role("tab", name="Branches").click()
    found["branches"] = serious(page)
    assert not {view: violations for view, violations in found.items() if violations}


def test_axe_would_see_it(ready: Callable[..., Page]):
    page = ready()
    page.evaluate("() => document.querySelector('.composer textarea').removeAttribute('aria-label')")
    page.evaluate("() => document.querySelector('.composer textarea').removeAttribute('placeholder')")
    assert any(found.startswith("label:") for found in serious(page))


@pytest.mark.long
def test_everything_fits_on_a_phone(open_page: Callable[..., Page], served: Served):
    page = open_page(served.url, size=PHONE)
    say(page, "hostile draft 80")
    page.locator(".tokens .t").nth(4).click()
    page.wait_for_selector(".rung.draw")
    wide = "() => document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(wide) <= 0
    for tab in ("Plots", "Branches", "Code", "Why"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate(wide) <= 0
