"""The plots: what they show is what the records say; they select, and keep up with a long stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from page.conftest import say

if TYPE_CHECKING:
    from playwright.sync_api import Page

SERIES = """async (tokens) => {
  const { Series } = await import("./page/js/plots.js");
  const series = new Series();
  const growing = [];
  for (const token of tokens) { growing.push(token); series.update(growing); }
  const { index, surprise, entropy, survivors, gap, speed, accepted, refused, share } = series;
  return { index, surprise, entropy, survivors, gap, speed, accepted, refused, share };
}"""


def token(i: int, p: float, kept: int | None, origin: str) -> dict:
    record = {
        "token_id": 7,
        "ids": [3, 7],
        "origin": origin,
        "model": {"probabilities": [1 - p, p], "entropy": 0.5 + i},
        "edits": [],
        "refinements": [] if kept is None else [{"method": "top_p", "kept": kept}],
    }
    return {"record": record, "time_ms": 100.0 * i + 3, "text": "x"}


def test_the_columns_are_the_records(modules: Page):
    origins = ("drawn", "accepted", "replaced", "accepted")
    tokens = [token(i, p, kept, origins[i]) for i, (p, kept) in enumerate(((0.5, 3), (1e-12, 1), (0.0, None), (1, 2)))]
    found = modules.evaluate(SERIES, tokens)
    assert found["index"] == [0, 1, 2, 3]
    assert found["surprise"] == pytest.approx([math.log(2), 20, 20, 0])
    assert found["entropy"] == [0.5, 1.5, 2.5, 3.5]
    assert found["survivors"] == [3, 1, None, 2]
    assert found["gap"] == [None, 100, 100, 100]
    assert found["speed"] == [None, 10, 10, 10]
    assert (found["accepted"], found["refused"]) == ([None, 1, None, 1], [None, None, 0, None])
    assert found["share"] == [None, 1, 0.5, pytest.approx(2 / 3)]


def test_speed_is_taken_over_a_while(modules: Page):
    """Tokens that come at once, at the end or between, are not a speed of their own."""
    tokens = [token(i, 0.5, 3, "drawn") for i in range(60)]
    for i, one in enumerate(tokens):
        one["time_ms"] = 20.0 * (i // 4 * 4) + 0.01 * i  # four tokens every 80 ms
    tokens[-1]["time_ms"] = tokens[-2]["time_ms"] + 0.1
    speed = modules.evaluate(SERIES, tokens)["speed"]
    assert speed[0] is None
    assert all(one is None or 25 <= one <= 80 for one in speed), speed


def open_plots(page: Page, text: str) -> None:
    say(page, text)
    page.locator(".tokens .t").first.click()
    page.get_by_role("tab", name="Plots").click()
    page.locator(".plot canvas").first.wait_for()


@pytest.mark.long
def test_a_click_in_a_plot_selects_the_token(page: Page):
    open_plots(page, "hello 60")
    over = page.locator(".plot[data-plot=surprise] .u-over")
    box = over.bounding_box()
    assert box is not None
    over.click(position={"x": box["width"] * 30 / 60, "y": box["height"] / 2})
    assert page.locator(".tokens .t.sel").get_attribute("data-i") == "30"


@pytest.mark.long
def test_the_arrow_keys_walk_the_tokens_of_a_plot(page: Page):
    open_plots(page, "hello 20")
    plot = page.get_by_role("slider", name="Surprise and entropy")
    plot.focus()
    for key, index in (("ArrowRight", 1), ("ArrowRight", 2), ("End", 20), ("ArrowRight", 20), ("Home", 0)):
        page.keyboard.press(key)
        assert page.locator(".tokens .t.sel").get_attribute("data-i") == str(index)
        assert plot.get_attribute("aria-valuenow") == str(index + 1)
    assert "token 1: surprise" in (plot.get_attribute("aria-valuetext") or "")


@pytest.mark.long
def test_plots_without_anything_to_show_are_left_out(page: Page):
    open_plots(page, "hello 20")
    assert {one.get_attribute("data-plot") for one in page.locator(".plot").all()} == {"surprise", "speed", "gap"}


@pytest.mark.long
def test_guesses_are_plotted_where_there_are_some(page: Page):
    open_plots(page, "draft 30")
    page.locator(".plot[data-plot=guesses] canvas").wait_for()
