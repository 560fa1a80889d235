"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.harness import Harness
from tailrace.engine import draws


@pytest.fixture(params=["off", "on"], ids=lambda mode: f"overlap {mode}")
def both_modes(request, monkeypatch) -> str:
    """Steps that follow each other, and steps that overlap."""
    monkeypatch.setattr(Harness, "overlap", request.param)
    return request.param


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring where tensors are so small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine lets no mask come late: who is late sits out, which tests that ask for it bring about."""
    monkeypatch.setattr(draws, "LATE_S", 60.0)
