"""Runs of the conformance laws against the scripted server, inside the test's own loop."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scripted_server.honest import HonestServer
from tailrace_conform.context import BUDGETS
from tailrace_conform.laws import all_laws
from tailrace_conform.runner import ConformRun, Runner, chosen
from tailrace_conform.target import TargetServer


async def judge(
    server: HonestServer, only: Sequence[str] = (), seed: int = 0, budget: str = "quick", timeout_s: float = 30.0
) -> ConformRun:
    """A run of these laws, or of all."""
    return await judge_url(server.url, only, seed, budget, timeout_s)


async def judge_url(
    url: str, only: Sequence[str] = (), seed: int = 0, budget: str = "quick", timeout_s: float = 30.0
) -> ConformRun:
    """A run of these laws, or of all, against the server there."""
    target = TargetServer(url, timeout_s=timeout_s)
    try:
        return await Runner(target, chosen(all_laws(), only), BUDGETS[budget], seed).run()
    finally:
        await target.close()


# What no reason may hold: it is read by people who know no Python.
FOREIGN = re.compile(
    r"\b(?:None|NoneType|True|False|Traceback|nan|inf|str|int|float|bool|dict|tuple|httpx|asyncio)\b|\b[A-Z]\w+(?:Error|Exception)\b"
    r"|<class|object at 0x|\bb'|[\[({]'|': |', '"
)


def foreign(run: ConformRun) -> dict[str, str]:
    """Law → reason, of those whose reason holds Python's words."""
    return {one.law.id: one.verdict.said for one in run.judged if FOREIGN.search(one.verdict.said)}


def said(run: ConformRun) -> dict[str, str]:
    """Law → verdict and sentence, of those that do not hold."""
    return {one.law.id: f"{one.verdict.kind}: {one.verdict.said}" for one in run.judged if one.verdict.kind != "holds"}
