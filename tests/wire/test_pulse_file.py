"""A heartbeat whose file can't be written is one sentence that names the file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.wire.pulse import Pulse, make_pulse_path


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_full_disk_is_one_sentence_and_no_signal(tmp_path: Path):
    """A file that only has a size gets its place at the first write to the mapped memory: a SIGBUS."""
    url = f"ipc://{tmp_path}/engine"
    make_pulse_path(url).symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=f"{tmp_path}/pulse can't be written: No space left on device"):
        Pulse(url, 1.0)
