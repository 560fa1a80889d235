"""The scans along sequences have the same bits on every instruction set: scan_bits.cpp, compiled once per set.

The sets of another machine need Debian's g++-aarch64-linux-gnu and qemu-user.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ["tests/kernels/scan_bits.cpp", *sorted(str(path) for path in (ROOT / "csrc" / "state").glob("*.cpp"))]
FLAGS = ["-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
ALWAYS = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-DTAILRACE_ONE_SET", "-Icsrc", "-pthread", "csrc/base/pool.cpp"]
X86 = platform.machine() == "x86_64"
LEVELS = {"x86-64": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx512bw"}  # level → a flag that the processor must have
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = pytest.mark.skipif(not X86 or shutil.which("c++") is None, reason="needs a compiler on x86-64")


def build(folder: Path, compiler: str, *options: str, parts: list[str] = PARTS) -> str:
    made = folder / f"bits{''.join(options)}"
    done = subprocess.run(
        [compiler, *FLAGS, *ALWAYS, *options, "-o", str(made), *parts], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return str(made)


def run(*command: str) -> bytes:
    return subprocess.run(command, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scans")


@pytest.fixture(scope="module")
def portable(folder) -> str:
    return build(folder, "c++", "-march=x86-64")


def test_every_level_of_x86_has_the_same_bits(folder, portable):
    expected, flags = run(portable), Path("/proc/cpuinfo").read_text().split()
    assert len(expected) > 1_000_000
    for level in [level for level, flag in LEVELS.items() if flag in flags]:
        assert run(build(folder, "c++", f"-march={level}")) == expected, level


def test_another_input_is_seen(portable):
    assert run(portable) != run(portable, "a planted fault")


@pytest.mark.skipif(shutil.which(ARM_COMPILER) is None or shutil.which(ARM_EMULATOR) is None, reason="needs an ARM")
def test_an_arm_has_the_same_bits(folder, portable):
    assert run(ARM_EMULATOR, build(folder, ARM_COMPILER, "-static")) == run(portable)
