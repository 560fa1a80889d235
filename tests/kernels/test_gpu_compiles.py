"""What the interpreter takes, the compiler must take as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("compile_gpu.py")


def test_all_kernels_become_machine_code_without_a_gpu():
    """Of Ampere, Hopper and Blackwell; the three largest of Hopper alone, half a minute each."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    asked = [sys.executable, "-W", "ignore", str(SCRIPT), "80", "90", "100"]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("\n")
    assert sum(line.startswith("90 ") for line in said) == 3 + sum(line.startswith("80 ") for line in said) > 1
