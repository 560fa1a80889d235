"""No false alarm: the honest server keeps every law, whatever the run's seed, and in whatever way it is honest."""

from __future__ import annotations

import pytest

from judging import judge, said
from scripted_server.honest import HonestServer

UNSURE = ("not_offered", "inconclusive")
RUNS = 10


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(RUNS))
async def test_the_honest_server_keeps_every_law(seed: int):
    async with HonestServer() as server:
        run = await judge(server, seed=seed)
    assert not run.findings, said(run)
    assert not [one.law.id for one in run.judged if one.verdict.kind in UNSURE], said(run)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("server", "family"),
    [
        (HonestServer("keep-alive"), "streams"),  # comments in the stream
        (HonestServer(thinking=True), "structure"),
        (HonestServer(thinking=True), "stops"),
    ],
    ids=["comments", "thoughts and structure", "thoughts and stops"],
)
async def test_other_honest_servers_are_not_accused(server: HonestServer, family: str):
    async with server:
        run = await judge(server, [family])
    assert not run.findings, said(run)


@pytest.mark.parametrize("family", ["logprobs", pytest.param("knobs", marks=pytest.mark.long)])
async def test_a_models_own_defaults_are_no_fault(family: str):
    """They are put out of the way, since raw reports do not show them."""
    async with HonestServer(defaults={"repetition_penalty": 1.5, "top_k": 3, "top_p": 0.6}) as server:
        run = await judge(server, [family])
    assert not run.findings, said(run)


async def test_places_become_free_without_metrics_too():
    """Those that are left slow others down; when their clients are gone, others are fast again."""
    async with HonestServer(metrics=False) as server:
        run = await judge(server, ["streams.gone-client"])
    assert [one.verdict.kind for one in run.judged] == ["holds"], said(run)


@pytest.mark.few(1)
@pytest.mark.parametrize(("fault", "verdict"), [("", "holds"), ("gone-goes-on", "broken")])
async def test_metrics_that_are_a_second_old_are_read_as_such(fault: str, verdict: str):
    """What ran a moment before still counts in them, and what was opened does not yet."""
    async with HonestServer(fault, late_s=1.0) as server:
        run = await judge(server, ["seeds.among-others", "streams.gone-client"])
    assert [one.verdict.kind for one in run.judged] == ["holds", verdict], said(run)
