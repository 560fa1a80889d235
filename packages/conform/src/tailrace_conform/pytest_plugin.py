"""The laws as tests of another project: `pytest --conform-url=http://host:8000/v1` adds a test per law.

Without the option nothing is added, and nothing but pytest is imported. A law that is broken, or whose field is
silently ignored, fails; one that is not offered or inconclusive is skipped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_conform.errors import ConformError

if TYPE_CHECKING:
    from tailrace_conform.law import Law
    from tailrace_conform.runner import JudgedLaw, Runner


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conform", "laws of samplers and streams (tailrace conform)")
    group.addoption("--conform-url", default="", help="judge the OpenAI-compatible server at this base URL")
    group.addoption("--conform-model", default="", help="the model to ask; the first that is listed unless given")
    group.addoption("--conform-api-key", default="", help="the server's key")
    group.addoption("--conform-only", default="", help="ids or families of laws, by commas")
    group.addoption("--conform-skip", default="", help="ids or families of laws to leave out, by commas")
    group.addoption("--conform-budget", default="normal", choices=["quick", "normal", "thorough"])
    group.addoption("--conform-concurrency", default=8, type=int, help="requests at once, at most")
    group.addoption("--conform-timeout", default=60.0, type=float, help="seconds without a byte that count as a hang")


def split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


class LawSession:
    """One server, one event loop, one run; laws are judged when their tests run. why_not: why none can be judged."""

    def __init__(self, config: pytest.Config) -> None:
        from tailrace_conform.context import BUDGETS
        from tailrace_conform.laws import all_laws
        from tailrace_conform.runner import Runner, chosen
        from tailrace_conform.target import TargetServer

        def option(name: str) -> Any:
            return config.getoption(name)

        self.laws = chosen(all_laws(), split(option("--conform-only")), split(option("--conform-skip")))
        key = option("--conform-api-key") or os.environ.get("OPENAI_API_KEY", "")
        most, wait_s = option("--conform-concurrency"), option("--conform-timeout")
        server = TargetServer(option("--conform-url"), option("--conform-model"), key, most, wait_s)
        self.loop = asyncio.new_event_loop()
        self.runner: Runner = Runner(server, self.laws, BUDGETS[option("--conform-budget")])
        self.ready, self.why_not = False, ""

    def judge(self, law: Law) -> JudgedLaw:
        """Raises LawViolation where the server can't be judged, or is gone."""
        if not self.why_not and not self.ready:
            self.prepare()
        if self.why_not:
            raise LawViolation(self.why_not)
        one = self.loop.run_until_complete(self.runner.judge(law))
        if self.loop.run_until_complete(self.runner.is_gone()):
            self.why_not = f"{self.runner.found.url} is gone: nobody answers there since {law.id} was judged"
        return one

    def prepare(self) -> None:
        try:
            self.loop.run_until_complete(self.runner.prepare())
            self.ready = True
        except ConformError as error:
            self.why_not = str(error)

    def close(self) -> None:
        self.loop.run_until_complete(self.runner.server.close())
        self.loop.close()


SESSION = pytest.StashKey[LawSession]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--conform-url"):
        try:
            config.stash[SESSION] = LawSession(config)
        except ConformError as error:
            raise pytest.UsageError(str(error)) from None
        items += LawCollector.from_parent(session, name="conform", path=Path(config.rootpath)).collect()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (made := config.stash.get(SESSION, None)) is not None:
        made.close()


class LawCollector(pytest.Collector):
    """All laws, as items."""

    def collect(self) -> Iterator[LawItem]:
        for law in self.config.stash[SESSION].laws:
            yield LawItem.from_parent(self, name=law.id, law=law)


class LawViolation(AssertionError):  # noqa: N818, as pytest shows it
    """A law is broken, a field silently ignored, or nothing can be judged there."""


class LawItem(pytest.Item):
    """A law as a test."""

    def __init__(self, *, law: Law, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.law = law

    def runtest(self) -> None:
        from tailrace_conform.report.text import finding
        from tailrace_conform.runner import FINDINGS
        from tailrace_conform.verdict import KINDS

        made = self.config.stash[SESSION]
        one = made.judge(self.law)
        if one.verdict.kind in FINDINGS:
            raise LawViolation(finding(one, made.runner.found.url))
        if made.why_not:  # the server died while this law was judged
            raise LawViolation(made.why_not)
        if one.verdict.kind != "holds":
            pytest.skip(f"{KINDS[one.verdict.kind]}: {one.verdict.said}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:  # type: ignore[override]
        if isinstance(excinfo.value, LawViolation):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"conform: {self.law.id}"
