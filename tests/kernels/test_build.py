"""CMakeLists.txt compiles every file of csrc/, and every file of sample/ and quantized/ without contraction: their
results are then the same bits on every instruction set."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CMAKE = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")
SAME_BITS = {"sample", "quantized", "state"}  # folders of csrc/
PLANTED = [f"{folder}/planted.cpp" for folder in ("base", "model", *sorted(SAME_BITS))]

pytestmark = pytest.mark.skipif(CMAKE is None or shutil.which("c++") is None, reason="needs cmake and a C++ compiler")


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> dict[str, str]:
    """Compile commands by file of a copy of csrc/ that has one more file in each folder."""
    source = tmp_path_factory.mktemp("build")
    shutil.copy(ROOT / "CMakeLists.txt", source)
    shutil.copytree(ROOT / "csrc", source / "csrc")
    for name in PLANTED:
        (source / "csrc" / name).write_text("")
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    done = subprocess.run(
        [str(CMAKE), "-S", ".", "-B", "made", *options], cwd=source, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    entries = json.loads((source / "made" / "compile_commands.json").read_text())
    paths = {Path(entry["file"]): entry["command"] for entry in entries}
    return {
        path.relative_to(source / "csrc").as_posix(): command
        for path, command in paths.items()
        if path.is_relative_to(source / "csrc")
    }


def test_every_file_is_compiled(commands):
    sources = {path.relative_to(ROOT / "csrc").as_posix() for path in (ROOT / "csrc").rglob("*.cpp")}
    assert set(commands) == sources | {*PLANTED}


def test_contraction_is_off_by_folder(commands):
    uncontracted = {name for name, command in commands.items() if "-ffp-contract=off" in command.split()}
    assert uncontracted == {name for name in commands if name.split("/")[0] in SAME_BITS}
