"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from engine.harness import Harness


@pytest.fixture(params=["off", "on"], ids=lambda mode: f"overlap {mode}")
def both_modes(request, monkeypatch) -> str:
    """Steps that follow each other, and steps that overlap."""
    monkeypatch.setattr(Harness, "overlap", request.param)
    return request.param
