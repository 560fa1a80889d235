"""A folder made once: seen whole or not at all, made by one process, whichever process dies when."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tailrace.errors import ModelLoadError
from tailrace.models.store import MARKER, TEMPORARY, is_whole, lock_of, make_once

KILLED = """
import sys, time
from pathlib import Path
from tailrace.models.store import make_once

def build(folder):
    (folder / "half").write_text("half")
    print("building", flush=True)
    time.sleep(60)
    return {}

make_once(Path(sys.argv[1]), build, lambda: None)
"""


def build(folder: Path) -> dict[str, str]:
    (folder / "deep").mkdir()
    (folder / "deep" / "a").write_text("one")
    (folder / "b").write_bytes(b"12345")
    return {"source": "here"}


def never(folder: Path) -> dict[str, str]:
    raise AssertionError("made again")


def silent() -> None:
    pass


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(f"*{TEMPORARY}*"))


def test_made_once_and_marked(tmp_path: Path):
    target = make_once(tmp_path / "x", build, silent)
    assert json.loads((target / MARKER).read_text()) == {"source": "here", "files": {"b": 5, "deep/a": 3}}
    assert make_once(target, never, silent) == target
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("fault", ["deleted", "cut short", "marker gone", "marker broken"])
def test_a_damaged_folder_is_not_whole_and_is_made_again(tmp_path: Path, fault: str):
    target = make_once(tmp_path / "x", build, silent)
    assert is_whole(target)
    match fault:
        case "deleted":
            (target / "deep" / "a").unlink()
        case "cut short":
            (target / "b").write_bytes(b"123")
        case "marker gone":
            (target / MARKER).unlink()
        case _:
            (target / MARKER).write_text("[]")
    assert not is_whole(target)
    make_once(target, build, silent)
    assert is_whole(target)
    assert (target / "b").read_bytes() == b"12345"


def test_a_failed_build_leaves_nothing(tmp_path: Path):
    def fails(folder: Path) -> dict[str, str]:
        (folder / "half").write_text("half")
        raise ModelLoadError("no")

    with pytest.raises(ModelLoadError, match="no"):
        make_once(tmp_path / "x", fails, silent)
    assert not (tmp_path / "x").exists()
    assert not leftovers(tmp_path)


def test_threads_that_start_at_once_share_one_build(tmp_path: Path):
    builds, waits = [], []

    def slow(folder: Path) -> dict[str, str]:
        builds.append(folder)
        time.sleep(0.3)
        return build(folder)

    threads = [
        threading.Thread(target=make_once, args=(tmp_path / "x", slow, lambda: waits.append(1))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(builds) == 1
    assert len(waits) == 3
    assert is_whole(tmp_path / "x")


def test_killed_half_way_then_made_right(tmp_path: Path):
    target = tmp_path / "x"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "building\n"
        maker.send_signal(signal.SIGKILL)
    assert not target.exists()
    assert len(leftovers(tmp_path)) == 1
    make_once(target, build, lambda: pytest.fail("the lock outlived its holder"))
    assert sorted(p.name for p in target.iterdir()) == ["b", "deep", MARKER]
    assert not leftovers(tmp_path)


def test_the_leftovers_of_another_target_go_only_if_nobody_makes_it(tmp_path: Path):
    from filelock import FileLock

    for name in ("dead", "alive"):
        (tmp_path / f"{name}{TEMPORARY}1").mkdir()
    with FileLock(lock_of(tmp_path / "alive")):
        make_once(tmp_path / "x", build, silent)
    assert [p.name for p in leftovers(tmp_path)] == [f"alive{TEMPORARY}1"]


def test_an_unusable_cache_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match=r"cache folder .*file"):
        make_once(tmp_path / "file" / "x", build, silent)
