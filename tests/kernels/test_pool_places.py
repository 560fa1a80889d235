"""Where the threads of the C++ kernels may run."""

import ast
import os
import subprocess
import sys

import pytest

SHOW = """
import os, threading, torch
from tailrace.kernels import cpu
cpu.set_num_threads(2)
print([sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")])
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux pins threads")
def test_a_worker_does_not_share_the_core_that_openmp_has_pinned_its_maker_to() -> None:
    """vLLM's CPU worker runs with such places; a worker that inherits its maker's core halves the kernels' speed."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("one core")
    places = ",".join(f"{{{core}}}" for core in cores)
    pinned = {"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "true", "OMP_PLACES": places}
    shown = subprocess.run([sys.executable, "-c", SHOW], env=os.environ | pinned, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    found = ast.literal_eval(shown.stdout)
    assert cores[:1] in found  # OpenMP has pinned the main thread: else this would show nothing
    assert cores in found
