"""A heartbeat whose file can't be written is one sentence that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.wire import pulse
from tailrace.wire.pulse import Pulse


def test_file_that_can_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int, size: int) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(pulse.os, "ftruncate", fail)
    with pytest.raises(ConfigError, match=f"{tmp_path}/pulse can't be written: File too large"):
        Pulse(f"ipc://{tmp_path}/engine", 1.0)
