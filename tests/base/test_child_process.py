"""The processor time of another process."""

from __future__ import annotations

import subprocess
import sys

from tailrace.base.child_process import read_cpu_s

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"


def test_processor_time_of_a_process():
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used_s = read_cpu_s(child.pid)
        child.communicate(b"\n")
    assert 0.3 <= used_s < 30
    assert read_cpu_s(child.pid) == 0  # it has ended
