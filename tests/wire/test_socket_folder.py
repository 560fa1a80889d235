"""The folder of an engine's socket: short enough, locked by its owner, and never left behind for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.wire import socket_folder
from tailrace.wire.socket_folder import LOCK, PREFIX, SOCKET, SocketFolder, remove_stale

LIMIT = 107
OWNER = """
import sys
from tailrace.wire.socket_folder import SocketFolder
print(SocketFolder(107).path, flush=True)
sys.stdin.read()
"""


def start_owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    env = os.environ | {"TMPDIR": str(parent)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


@pytest.fixture
def short(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_long_temporary_folder_is_passed_over(tmp_path: Path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    folder = SocketFolder(LIMIT)
    assert len(os.fsencode(folder.socket)) <= LIMIT
    assert not list(long.iterdir())
    folder.remove()
    assert not Path(folder.path).exists()


def test_without_a_usable_place_one_sentence_names_each(monkeypatch, short: Path):
    monkeypatch.setattr(socket_folder, "FALLBACKS", ())
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(ConfigError, match="set TMPDIR to a short path") as refused:
        SocketFolder(limit=10)
    assert str(short) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_folder_of_a_killed_owner_is_deleted_and_a_live_one_stays(short: Path):
    owner, left = start_owner(short)
    try:
        (left / SOCKET).touch()
        remove_stale(str(short))
        assert (left / LOCK).exists()
        assert (left / SOCKET).exists()
    finally:
        owner.kill()
        owner.communicate()
    assert left.exists()
    SocketFolder(LIMIT).remove()
    assert not left.exists()
    assert not list(short.iterdir())


def test_folders_that_are_not_ours_are_never_deleted(short: Path):
    unlocked, full, linked = short / f"{PREFIX}a", short / f"{PREFIX}b", short / f"{PREFIX}c"
    unlocked.mkdir()
    full.mkdir()
    (full / LOCK).touch()
    (full / "notes").touch()
    linked.symlink_to(unlocked)
    remove_stale(str(short))
    assert unlocked.exists()
    assert (full / "notes").exists()
    assert linked.is_symlink()
