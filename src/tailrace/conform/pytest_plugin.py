"""The laws as tests of another project: `pytest --conform-url=http://host:8000/v1` adds a test per law.

Without the option nothing is added, and nothing but pytest is imported. A law that is broken, or whose field is
silently ignored, fails; one that is not offered or inconclusive is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tailrace.conform.law import Law
    from tailrace.conform.runner import JudgedLaw, Runner


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conform", "laws of samplers and streams (tailrace conform)")
    group.addoption("--conform-url", default="", help="judge the OpenAI-compatible server at this base URL")
    group.addoption("--conform-model", default="", help="the model to ask; the first that is listed unless given")
    group.addoption("--conform-api-key", default="", help="the server's key")
    group.addoption("--conform-only", default="", help="ids or families of laws, by commas")
    group.addoption("--conform-skip", default="", help="ids or families of laws to leave out, by commas")
    group.addoption("--conform-budget", default="normal", choices=["quick", "normal", "thorough"])


def split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


class LawSession:
    """One server, one event loop, one run; laws are judged when their tests run."""

    def __init__(self, config: pytest.Config) -> None:
        from tailrace.conform.context import BUDGETS
        from tailrace.conform.laws import all_laws
        from tailrace.conform.runner import Runner, chosen
        from tailrace.conform.target import TargetServer

        def option(name: str) -> Any:
            return config.getoption(name)

        self.laws = chosen(all_laws(), split(option("--conform-only")), split(option("--conform-skip")))
        self.loop = asyncio.new_event_loop()
        server = TargetServer(option("--conform-url"), option("--conform-model"), option("--conform-api-key"))
        self.runner: Runner = Runner(server, self.laws, BUDGETS[option("--conform-budget")])
        self.ready = False

    def judge(self, law: Law) -> JudgedLaw:
        if not self.ready:
            self.loop.run_until_complete(self.runner.prepare())
            self.ready = True
        return self.loop.run_until_complete(self.runner.judge(law))

    def close(self) -> None:
        self.loop.run_until_complete(self.runner.server.close())
        self.loop.close()


SESSION = pytest.StashKey[LawSession]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--conform-url"):
        config.stash[SESSION] = LawSession(config)
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
    """A law is broken, or a field silently ignored."""


class LawItem(pytest.Item):
    """A law as a test."""

    def __init__(self, *, law: Law, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.law = law

    def runtest(self) -> None:
        from tailrace.conform.report.text import finding
        from tailrace.conform.runner import FINDINGS
        from tailrace.conform.verdict import KINDS

        made = self.config.stash[SESSION]
        one = made.judge(self.law)
        if one.verdict.kind in FINDINGS:
            raise LawViolation(finding(one, made.runner.found.url))
        if one.verdict.kind != "holds":
            pytest.skip(f"{KINDS[one.verdict.kind]}: {one.verdict.said}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:  # type: ignore[override]
        if isinstance(excinfo.value, LawViolation):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"conform: {self.law.id}"
