"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from engine.harness import Harness
from tailrace.engine import draws


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of `both_modes` that are marked `disturbs` run in both always, the rest without overlap with the long tests
    only: test_overlap and test_combinations compare the modes token for token."""
    if "both_modes" in metafunc.fixturenames:
        slow = () if metafunc.definition.get_closest_marker("disturbs") else pytest.mark.long
        modes = [pytest.param("off", marks=slow, id="overlap off"), pytest.param("on", id="overlap on")]
        metafunc.parametrize("both_modes", modes, indirect=True)


@pytest.fixture
def both_modes(request, monkeypatch) -> str:
    """Steps that follow each other, and steps that overlap."""
    monkeypatch.setattr(Harness, "overlap", request.param)
    return request.param


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine lets no mask come late: who is late sits out, which tests that ask for it bring about."""
    monkeypatch.setattr(draws, "LATE_S", 60.0)
