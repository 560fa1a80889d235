"""Processes that report why they fail, also if a library can't be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.base.reporting_child import make_reporting_command


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise MemoryError", "MemoryError: no reason given"),
        ("class PanicException(BaseException): pass\nraise PanicException('a\\nb')", "PanicException: a"),
        ("def run_process(status): raise OSError(28, 'No space left')", "OSError: [Errno 28] No space left"),
        ("print('words of a library')\ndef run_process(status): raise ValueError('x')", "ValueError: x"),
        ("from tailrace.errors import ConfigError\nraise ConfigError('no port')", "no port"),
    ],
)
def test_the_reason_is_one_line_on_the_pipe_and_no_traceback(tmp_path: Path, code: str, message: str):
    (tmp_path / "failing.py").write_text(code)
    done = subprocess.run(
        make_reporting_command("failing"),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    [line] = done.stdout.splitlines()
    assert json.loads(line)["message"] == message
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_an_engine_without_a_library_is_a_failed_start_of_one_sentence(tmp_path: Path):
    """torch alone is broken here: the engine imports it, and the front end does not."""
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: failed to map segment')")
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "serve", "--model", "scripted:next", "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TAILRACE_LOG": "error"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    why = "the engine is lost: ImportError: libtorch_cpu.so: failed to map segment"
    assert (done.returncode, done.stderr) == (1, f"ERROR tailrace.api.supervise: {why}\n")
