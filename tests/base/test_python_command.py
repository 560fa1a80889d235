"""Processes of our own find no modules in the working directory, which may be a model's folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tailrace.base.python_command import make_python_command, select_environment

SOURCES = Path(__file__).parents[2] / "src" / "tailrace"


def test_a_file_in_the_working_directory_is_not_imported(tmp_path: Path):
    for name in ("json", "msgspec", "tailrace"):
        (tmp_path / f"{name}.py").write_text("print('imported'); raise SystemExit(7)")
    command = make_python_command("tailrace.text.tokenizer_check", str(tmp_path / "none"), "60", "0")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "imported" not in done.stdout


def test_every_process_is_started_by_this_command():
    users = {path.name for path in SOURCES.rglob("*.py") if "[sys.executable" in path.read_text()}
    assert users == {"python_command.py"}


def test_secrets_are_not_selected(monkeypatch):
    monkeypatch.setenv("TAILRACE_SERVER_API_KEYS", "secret")
    assert "secret" not in select_environment().values()
