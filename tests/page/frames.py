"""How smooth the page is while it streams: `PYTHONPATH=tests python -m page.frames [--tokens 4000] [--rate 200]`.

Prints the worst time between two frames and the 99th percentile, and of the main thread's tasks (a frame's script,
style, layout and painting are one) the CPU times of the four longest, in milliseconds. The goal is 50 ms at most. The
first two are what one sees, and other processes have a part in them; the last are the page's own. Nothing asserts them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from page import fake_server
from page.conftest import CHROMIUM, DESK, Served, a_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WATCH = """() => {
  const frames = window.frameTimes = [];
  let last = performance.now();
  const step = (now) => { frames.push(now - last); last = now; requestAnimationFrame(step); };
  requestAnimationFrame(step);
}"""


def tasks_ms(trace: bytes) -> list[float]:
    """CPU time of each task of the page's main thread, ascending, from Chromium's trace."""
    events = json.loads(trace)["traceEvents"]
    scripts = Counter((event["pid"], event["tid"]) for event in events if event.get("name") == "FireAnimationFrame")
    [(main, _)] = scripts.most_common(1)
    names = ("RunTask", "ThreadControllerImpl::RunTask")
    own = (event for event in events if event.get("name") in names and (event["pid"], event["tid"]) == main)
    return sorted(event["tdur"] / 1000 for event in own if "tdur" in event)


def measure(browser: Browser, url: str, words: str, panel: str) -> dict[str, Any]:
    """Of one answer, from its first token to its last, with one of the panels open."""
    page = browser.new_page(viewport=DESK)
    page.goto(url)
    page.wait_for_selector(".composer")
    page.fill(".composer textarea", words)
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    page.keyboard.press("Enter")
    page.wait_for_selector(".tokens .t")
    if panel:
        page.locator(".tokens .t").first.click()
        page.get_by_role("tab", name=panel).click()
    page.evaluate(WATCH)
    page.wait_for_selector(".tokens[aria-busy=false]", timeout=300_000)
    frames = sorted(page.evaluate("() => frameTimes"))
    tasks = tasks_ms(browser.stop_tracing())
    count = page.locator(".tokens .t").count()
    page.close()
    return {
        "tokens": count,
        "frames": len(frames),
        "median_ms": round(frames[len(frames) // 2], 1),
        "p99_ms": round(frames[int(len(frames) * 0.99)], 1),
        "worst_ms": round(frames[-1], 1),
        "longest_tasks_cpu_ms": [round(task, 1) for task in tasks[-4:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=200.0, help="tokens per second")
    told = parser.parse_args()
    with Served(fake_server.create(), a_port()) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for kind, panel in (("paragraphs", ""), ("one paragraph", ""), ("paragraphs", "Plots")):
            words = f"draft {told.tokens} rate {told.rate:g} {kind if kind == 'paragraphs' else ''}"
            print(json.dumps({"text": kind, "panel": panel, **measure(browser, served.url, words, panel)}), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
