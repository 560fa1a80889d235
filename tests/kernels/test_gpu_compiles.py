"""What the interpreter takes, the compiler must take as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_gpu.py")


@pytest.mark.long
@pytest.mark.parametrize(
    ("architectures", "wide"),
    [(["90"], 0), pytest.param(["80", "90", "100"], 3, marks=pytest.mark.long)],
    ids=["Hopper, the small ones", "Ampere, Hopper and Blackwell"],
)
def test_all_kernels_become_machine_code_without_a_gpu(architectures, wide):
    """wide: how many of Hopper's are not compiled for the others, since they take half a minute each. However long it
    takes."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    asked = [sys.executable, "-W", "ignore", str(SCRIPT), *([] if wide else ["small"]), *architectures]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line.split()[0] for line in done.stdout.splitlines()]
    assert {said.count(one) for one in architectures if one != "90"} <= {said.count("90") - wide}
    assert said.count("90") > 20
