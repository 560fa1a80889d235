"""Every fault is found by its law, and no other law accuses a server wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from judging import foreign, judge, said
from scripted_server.faults import FRAME_FAULTS, SAMPLER_FAULTS, Fault
from scripted_server.honest import HonestServer
from tailrace_conform.laws import all_laws
from tailrace_conform.laws.streams import gone_client

FAULTS = FRAME_FAULTS | SAMPLER_FAULTS
PATIENCE_S = {"bad-json-hangs": 2.0}  # found when the client's patience ends


# What takes a larger budget to be found, or is drawn again and again until it is, is long.
SLOW = {name for name, fault in FAULTS.items() if fault.budget != "quick"} | {"ignores-min_tokens", "seed-under-load"}
CASES = [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in FAULTS]


def options(name: str) -> dict[str, Any]:
    return {"budget": FAULTS[name].budget, "timeout_s": PATIENCE_S.get(name, 30.0)}


@pytest.mark.few(8)
@pytest.mark.parametrize("name", CASES)
async def test_a_fault_is_found_by_its_law(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gone_client, "PATIENCE_S", 2.0)  # whoever is wrong is wrong for ever
    async with HonestServer(name) as server:
        run = await judge(server, [FAULTS[name].law, *FAULTS[name].beside], **options(name))
    assert [one.law.id for one in run.findings] == [FAULTS[name].law], said(run)
    assert not foreign(run)
    finding = run.findings[0].verdict
    assert finding.evidence
    assert str(finding.curl(run.url)).startswith("curl ")


def allowed(fault: Fault, law: str) -> bool:
    return law in (fault.law, *fault.also) or law.partition(".")[0] in fault.also


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
async def test_no_other_law_accuses_it_wrongly(name: str):
    """All laws with the quick budget. A fault that takes more to be found is found by its law in the test above."""
    async with HonestServer(name) as server:
        patience = {"timeout_s": 10.0} if name in PATIENCE_S else {}  # what is honest must not be hurried
        run = await judge(server, **options(name) | {"budget": "quick"} | patience)
    wrong = [one.law.id for one in run.findings if not allowed(FAULTS[name], one.law.id)]
    assert not wrong, said(run)
    assert not foreign(run)
    assert FAULTS[name].law in [one.law.id for one in run.findings] or FAULTS[name].budget != "quick"


def test_every_law_has_a_fault():
    assert {law.id for law in all_laws()} <= {fault.law for fault in FAULTS.values()}


def test_every_fault_names_laws():
    known = {law.id for law in all_laws()} | {law.family for law in all_laws()} | {"logprobs", "seeds", "knobs"}
    assert not {name for fault in FAULTS.values() for name in (fault.law, *fault.also) if name not in known}
