"""Pictures of the page's main views, into docs/screenshots: `PYTHONPATH=tests python -m page.screenshots [--url URL]`.

Starts `tailrace serve` with the default model, unless --url names a server that runs, and drives Chromium. The answers
are the model's own; with a seed they are the same each time on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

from page.conftest import CHROMIUM, PHONE, say
from page.palette import reduced

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
SIZE = {"width": 1360, "height": 850}
LIMIT = 200_000  # bytes
PROMPT = "Write two sentences about a river at night."
START_S = 600


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """The address of a server that is ready."""
    if url is not None:
        yield url.rstrip("/") + "/"
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).with_name("tailrace"), "serve", "--port", port, "--max-num-seqs", 8]
    process = subprocess.Popen([*map(str, command), "--drafter", "ngram", "--log-level", "warning"])
    try:
        found = f"http://127.0.0.1:{port}/"
        wait_for(found, process)
        yield found
    finally:
        process.terminate()
        process.wait(60)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until it is ready.

    Raises:
        RuntimeError: it has ended, or takes too long.
    """
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}health", timeout=5):
            return
        time.sleep(0.5)
    raise RuntimeError("the server did not become ready")


def opened(browser: Browser, url: str, size: dict[str, int]) -> Page:
    """The page, with its knobs."""
    context = browser.new_context(viewport=size, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    page.wait_for_selector(".composer")
    if size == PHONE:
        page.get_by_role("button", name="Parameters").click()
    page.wait_for_selector("[data-field=top_p]")
    return page


def put(page: Page, **values: str) -> None:
    """Types into knobs; where they cover the conversation they are closed again."""
    for name, value in values.items():
        page.locator(f"[data-field={name}] input[type=text]").fill(value)
    page.evaluate("document.querySelector('.knobs-panel').scrollTop = 0")
    if page.viewport_size == PHONE:
        page.get_by_label("Close the parameters").click()


def talk(page: Page) -> None:
    """An answer with some cuts, and a token of it that had rivals."""
    put(page, temperature="0.9", top_p="0.92", max_tokens="60", seed="11")
    say(page, PROMPT)


def choose(page: Page) -> None:
    """Selects the most surprising token among the first: the highest step of the colours."""
    for step in (6, 5, 4, 3):
        found = page.locator(f".tokens .t.l{step}")
        if found.count():
            found.first.click()
            break
    page.wait_for_timeout(2500)


def ladder(page: Page) -> None:
    talk(page)
    choose(page)


def plots(page: Page) -> None:
    put(page, max_tokens="200", temperature="0.9", min_p="0.02", seed="5")
    say(page, "Tell a story about a boat that drifts to the sea.")
    choose(page)
    page.get_by_role("tab", name="Plots").click()
    page.wait_for_timeout(1500)


def code(page: Page) -> None:
    talk(page)
    choose(page)
    page.get_by_role("tab", name="Code").click()
    page.locator(".code").get_by_label("Python").check()


def compare(page: Page) -> None:
    page.get_by_role("tab", name="Side by side").click()
    page.get_by_label("Prompt for both").fill(PROMPT)
    page.get_by_label("tokens", exact=True).fill("60")
    page.get_by_label("seed").fill("4")
    for name, preset in (("Left", "min-p"), ("Right", "balanced")):
        page.get_by_role("article", name=name).locator(".presets select").select_option(preset)
    page.get_by_role("button", name="Run both").click()
    page.locator(".side .tokens[aria-busy=false]").nth(1).wait_for()
    page.wait_for_timeout(3000)


def live(page: Page) -> None:
    """While three others ask."""
    others = """async () => {
      const body = JSON.stringify({ prompt: "The river", max_tokens: 400, ignore_eos: true, stream: true, n: 3 });
      fetch("v1/completions", { method: "POST", headers: { "content-type": "application/json" }, body });
    }"""
    page.evaluate(others)
    page.get_by_role("tab", name="Server").click()
    page.wait_for_timeout(16_000)


def take(page: Page, name: str, scheme: Literal["light", "dark"]) -> list[str]:
    """Writes the picture; its name if it is too large."""
    page.emulate_media(color_scheme=scheme)
    page.wait_for_timeout(500)  # plots are drawn anew
    whole = page.screenshot(animations="disabled", caret="hide")
    decoder = page.context.new_page()
    content = reduced(whole, decoder)
    decoder.close()
    (FOLDER / f"{name}.png").write_bytes(content)
    print(f"docs/screenshots/{name}.png: {len(content) / 1000:.0f} kB", flush=True)
    return [name] if len(content) > LIMIT else []


VIEWS: dict[str, Callable[[Page], None]] = {
    "ladder": ladder,
    "plots": plots,
    "code": code,
    "compare": compare,
    "server": live,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a server that runs; none: one is started with the default model")
    parser.add_argument("--only", action="append", choices=[*VIEWS, "phone"], help="these views")
    told = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    large = []
    with server(told.url) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shots = [*((name, view, SIZE) for name, view in VIEWS.items()), ("phone", ladder, PHONE)]
        for name, view, size in shots:
            if told.only and name not in told.only:
                continue
            page = opened(browser, url, size)
            view(page)
            for scheme in ("light", "dark"):
                large += take(page, f"{name}-{scheme}", scheme)
            page.context.close()
        browser.close()
    if large:
        print(f"larger than {LIMIT // 1000} kB: {', '.join(large)}", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
