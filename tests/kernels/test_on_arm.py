"""The kernels' C++ on ARM: it compiles, and the products of quantized weights by its dot products are the portable
loop's, bit for bit (on_arm.cpp). On another machine both need Debian's g++-aarch64-linux-gnu and qemu-user."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

import nanobind
import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
ARM = platform.machine() == "aarch64"
COMPILER = "c++" if ARM else "aarch64-linux-gnu-g++"
EMULATOR = [] if ARM else ["qemu-aarch64"]
PARTS = [
    "tests/kernels/on_arm.cpp",
    *sorted(str(path) for path in (CSRC / "quantized").glob("*.cpp")),
    "csrc/model/elementwise.cpp",
    "csrc/base/pool.cpp",
]
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in (COMPILER, *EMULATOR)),
    reason=f"needs {' and '.join([COMPILER, *EMULATOR])}",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> list[str]:
    made = tmp_path_factory.mktemp("arm") / "on_arm"
    compile_by("-O2", "-ffp-contract=off", "-Icsrc", "-static", "-pthread", "-o", str(made), *PARTS)
    return [*EMULATOR, str(made)]


def compile_by(*arguments: str) -> None:
    done = subprocess.run([COMPILER, *FLAGS, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_dot_products_are_the_portable_loops_bit_for_bit(program):
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "344 compared, 0 different\n")


def test_another_input_is_seen(program):
    done = subprocess.run([*program, "a planted fault"], capture_output=True, text=True)
    assert done.returncode == 1
    assert int(done.stdout.split()[2]) > 300


@pytest.mark.parametrize("file", sorted(CSRC.rglob("*.cpp")), ids=lambda path: str(path.relative_to(CSRC)))
def test_every_kernel_compiles(file):
    includes = [nanobind.include_dir(), sysconfig.get_path("include")]
    compile_by("-fsyntax-only", "-Icsrc", *(f"-isystem{path}" for path in includes), str(file))
