"""Attention over codes of int8 has the same bits on every instruction set: kv_bits.cpp, compiled once per set.

The sets of another machine need Debian's g++-aarch64-linux-gnu and qemu-user.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernels import test_scan_bits as by_sets

QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # see CMakeLists.txt
PARTS = [*QUIET, "tests/kernels/kv_bits.cpp", "csrc/quantized/kv_products.cpp", "csrc/quantized/kv_products_vnni.cpp"]

pytestmark = by_sets.pytestmark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("codes")


@pytest.fixture(scope="module")
def portable(folder: Path) -> str:
    return by_sets.build(folder, "c++", "-march=x86-64", parts=PARTS)


def test_every_level_of_x86_and_vnni_have_the_same_bits(folder: Path, portable: str):
    expected, flags = by_sets.run(portable), Path("/proc/cpuinfo").read_text().split()
    assert len(expected) > 100_000
    for level in [level for level, flag in by_sets.LEVELS.items() if flag in flags]:
        made = by_sets.build(folder, "c++", f"-march={level}", parts=PARTS)
        assert by_sets.run(made) == expected, level
        assert by_sets.run(made, "best") == expected, level


def test_another_scale_is_seen(portable: str):
    assert by_sets.run(portable) != by_sets.run(portable, "fault")


@pytest.mark.skipif(
    shutil.which(by_sets.ARM_COMPILER) is None or shutil.which(by_sets.ARM_EMULATOR) is None, reason="needs an ARM"
)
def test_an_arm_has_the_same_bits(folder: Path, portable: str):
    made = by_sets.build(folder, by_sets.ARM_COMPILER, "-static", parts=PARTS)
    assert by_sets.run(by_sets.ARM_EMULATOR, made) == by_sets.run(portable)
