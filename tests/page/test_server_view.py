"""The live view of the server: Prometheus' text is read, rates and quantiles are right; a server that loads says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from page.conftest import PATIENCE_MS

if TYPE_CHECKING:
    from playwright.sync_api import Page

READ = """async ([text, time]) => {
  const m = await import("./page/js/metrics.js");
  return m.reading(m.parse(text), time);
}"""
RATES = """async (list) => {
  const m = await import("./page/js/metrics.js");
  const [a, b] = list.map(([text, time]) => m.reading(m.parse(text), time));
  return m.rates(a, b);
}"""


def test_the_text_is_read_as_prometheus_client_reads_it(modules: Page):
    registry = CollectorRegistry()
    Gauge("g", 'What "quotes" \\ say.', ["a", "b"], registry=registry).labels('x"y\\z\n', "{}=,").set(-1.5e-7)
    Histogram("h", "It.", registry=registry).observe(0.3)
    Gauge("odd", "Odd.", registry=registry).set(float("nan"))
    text = generate_latest(registry).decode()
    wanted = [
        (s.name, dict(s.labels), s.value)
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.value == s.value
    ]
    asked = """async (text) => (await import("./page/js/metrics.js")).parse(text)
      .filter((one) => !Number.isNaN(one.value))"""
    found = [(one["name"], one["labels"], one["value"]) for one in modules.evaluate(asked, text)]
    assert found == wanted


def exposition(generated: float, steps: float, forward: float, waits: list[float]) -> str:
    registry = CollectorRegistry()
    Gauge("tailrace_num_requests_running", ".", ["model_name"], registry=registry).labels("a").set(3)
    Gauge("tailrace_kv_cache_usage_ratio", ".", registry=registry).set(0.25)
    Counter("tailrace_generation_tokens", ".", registry=registry).inc(generated)
    Counter("tailrace_engine_steps", ".", registry=registry).inc(steps)
    parts = Counter("tailrace_engine_step_seconds", ".", ["part"], registry=registry)
    parts.labels("forward").inc(forward)
    parts.labels("send").inc(99)
    first = Histogram("tailrace_time_to_first_token_seconds", ".", buckets=(0.1, 0.2, 0.4), registry=registry)
    for wait in waits:
        first.observe(wait)
    return generate_latest(registry).decode()


def test_rates_are_of_what_came_between(modules: Page):
    before = exposition(100, 10, 1.0, [0.05] * 50)
    now = exposition(340, 40, 1.6, [0.05] * 50 + [0.15] * 4)
    found = modules.evaluate(RATES, [[before, 10.0], [now, 12.0]])
    assert (found["generated"], found["steps"]) == (120, 15)
    assert found["step_ms"] == pytest.approx(20)
    assert found["parts"] == {"forward": pytest.approx(0.6)}
    assert found["first_s"] == pytest.approx(0.15)
    reading = modules.evaluate(READ, [now, 12.0])
    assert (reading["running"], reading["waiting"], reading["cache"]) == (3, None, 0.25)


def test_a_new_engines_counters_make_no_negative_rate(modules: Page):
    found = modules.evaluate(RATES, [[exposition(100, 10, 5, []), 1.0], [exposition(3, 1, 0.1, []), 2.0]])
    assert found["generated"] is None
    assert found["step_ms"] is None
    assert found["first_s"] is None


@pytest.mark.long
def test_the_view_shows_load_and_speed(page: Page):
    page.get_by_role("tab", name="Server").click()
    page.get_by_text("fake is ready").wait_for()
    tile = page.locator(".tile", has_text="Tokens per second").first
    tile.get_by_text("100", exact=True).wait_for()
    assert "3" in page.locator(".tile", has_text="Running").inner_text()
    assert "25 %" in page.locator(".tile", has_text="KV cache").inner_text()
    parts = page.locator(".step-parts")
    parts.get_by_text("75 %").wait_for()
    assert "the model" in parts.inner_text()


@pytest.mark.long
def test_a_model_that_sleeps_and_is_loaded_again(browser, served):
    said = {"version": "1", "models": ["m"], "keys": False, "loading": {}}
    loading = {"status": "loading", "error": None, "part": "weights", "progress": 0.42}
    states = iter([{"status": "sleeping", "error": None}, loading])

    def answer(route) -> None:
        health = next(states, {"status": "ready", "error": None})
        parts = {"m": "weights"} if health["status"] == "loading" else {}
        route.fulfill(json=said | {"health": health, "loading": parts})

    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.route("**/page/status", answer)
    page.goto(served.url)
    page.get_by_text("sleeps, and its memory is free: the next request loads it.").wait_for()
    page.get_by_text("is loading because a request waits: about 42 %.").wait_for()
    page.locator(".app > .starting").wait_for(state="detached")
    page.close()


@pytest.mark.long
def test_a_server_that_loads_says_which_part_it_is_in(browser, served):
    """Until it is ready; then the line goes away by itself."""
    said = {"version": "1", "models": ["m"], "keys": False, "loading": {"m": "grammars"}}
    states = iter(["starting", "starting"])

    def answer(route) -> None:
        status = next(states, "ready")
        loading = said["loading"] if status == "starting" else {}
        route.fulfill(json=said | {"health": {"status": status, "error": None}, "loading": loading})

    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.route("**/page/status", answer)
    page.goto(served.url)
    page.get_by_text("is loading").wait_for()
    assert page.locator(".loading [aria-current=step]").inner_text() == "starting what compiles grammars"
    assert page.locator(".loading .over").count() == 2
    page.locator(".app > .starting").wait_for(state="detached")
    page.close()
