"""What all tests share."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The default model, fetched and converted if it is not there yet."""
    from tailrace.config import ModelConfig
    from tailrace.models import resolve

    return resolve(ModelConfig(), progress=False).folder


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
