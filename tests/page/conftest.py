"""A browser, and the page from the fake server. Skipped where Playwright's package or a Chromium is missing."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from page import fake_server
from page.fake_streams import KeptStreams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
PATIENCE_MS = 300_000  # for whatever a test waits for: longer than a busy machine takes


class Served:
    """An application on a port of its own, in a thread."""

    def __init__(self, app: Any, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self._server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)


@pytest.fixture(scope="package")  # while Playwright is there its event loop runs, and asynchronous tests can't
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright: make install")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: Debian's and Ubuntu's package chromium, or CHROMIUM=path")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield started
        started.close()


def a_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def app() -> Any:
    return fake_server.create()


@pytest.fixture(scope="session")
def served(app: Any) -> Iterator[Served]:
    with Served(app, a_port()) as running:
        yield running


@pytest.fixture
def streams(app: Any) -> KeptStreams:
    """The resumable streams of the fake server."""
    return app.state.streams


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """open_page(url, size=DESK, dark=False, **context): a page of its own that fails the test if it has an error,
    breaks its CSP, or asks another server for anything."""
    contexts, trouble = [], []

    def watched(url: str, size: dict[str, int] = DESK, dark: bool = False, **more: Any) -> Page:
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda said: trouble.append(said.text) if "Security Policy" in said.text else None)
        page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((url, "blob:", "data:")) else trouble.append(asked.url),
        )
        page.goto(url)
        page.wait_for_selector(".composer")
        return page

    yield watched
    for context in contexts:
        context.close()
    assert not trouble


@pytest.fixture(scope="package")
def modules(browser: Browser, served: Served) -> Iterator[Page]:
    """A page that many tests share, for modules without markup: import("./page/js/….js") in it."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(served.url)
    page.evaluate("import('./page/js/state.js').then((state) => state.load())")  # the fields, which some modules read
    yield page
    page.close()


@pytest.fixture
def page(open_page: Callable[..., Page], served: Served) -> Page:
    return open_page(served.url)


def answered(page: Page) -> None:
    """Waits until the last answer has ended."""
    page.wait_for_selector(".turn.answer:last-of-type .tokens[aria-busy=false]")


def say(page: Page, text: str, whole: bool = True) -> None:
    """Sends a text and waits until the answer to it is there; whole=False: or has failed."""
    before = page.locator(".turn.answer").count()
    page.fill(".composer textarea", text)
    page.keyboard.press("Enter")
    page.locator(".turn.answer").nth(before).wait_for()
    if whole:
        answered(page)
    else:
        page.wait_for_selector(".turn.answer:last-of-type .error")


def sent(page: Page) -> list[tuple[str, Any]]:
    """A list to which each POST of the page is added: (path, body)."""
    found: list[tuple[str, Any]] = []

    def note(request: Request) -> None:
        if request.method == "POST":
            found.append(("/" + request.url.split("/", 3)[3], request.post_data_json))

    page.on("request", note)
    return found
