"""Folders that are made once and appear whole or not at all. Knows nothing of their contents.

The maker of a folder holds its lock, works in a temporary folder of the same parent, syncs that to disk and renames it.
So two processes that start at once share one result. A kill at any point leaves a temporary folder, which is never
mistaken for the real one and is deleted by the next maker. The kernel owns the lock, so it is released when its process
ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tailrace.errors import ModelLoadError

MARKER = "tailrace.json"  # written last: every file with its size in bytes, and the source
TEMPORARY = ".tmp-"


def is_whole(folder: Path) -> bool:
    """Return True if the folder has its marker and every file the marker lists, at its size."""
    try:
        files = json.loads((folder / MARKER).read_text())["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def make_once(target: Path, build: Callable[[Path], dict[str, Any]], on_wait: Callable[[], None]) -> Path:
    """Return `target`; if it does not exist yet, `build(temporary folder)` makes it.

    Args:
        build: fills the empty folder it is given; the marker keeps what it returns.
        on_wait: called once if another process is making the folder.

    Raises:
        ModelLoadError: the disk refused (full, read-only, no permission). Errors of `build` pass through.
    """
    if is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(lock_of(target), on_wait):
            if not is_whole(target):
                build_folder(target, build)
    except OSError as error:
        raise ModelLoadError(f"the cache folder {target.parent} can't be used: {error}") from error
    return target


def build_folder(target: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    """Build, sync, rename. The caller holds the lock."""
    remove_incomplete(target)
    temporary = Path(tempfile.mkdtemp(prefix=target.name + TEMPORARY, dir=target.parent))
    try:
        origin = build(temporary)
        files = {str(p.relative_to(temporary)): p.stat().st_size for p in sorted(temporary.rglob("*")) if p.is_file()}
        (temporary / MARKER).write_text(json.dumps({**origin, "files": files}, indent=2) + "\n")
        for path in [*temporary.rglob("*"), temporary]:
            flush_to_disk(path)
        temporary.chmod(0o755)
        temporary.rename(target)
        flush_to_disk(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after the rename there is nothing at that path


def remove_incomplete(target: Path) -> None:
    """Delete an incomplete folder at `target`, and the temporary folders of processes that have ended."""
    if target.exists():  # damaged: a file was deleted or cut short
        shutil.rmtree(target)
    for path in target.parent.glob(f"*{TEMPORARY}*"):
        owner = path.with_name(path.name.rpartition(TEMPORARY)[0])
        if owner == target:
            shutil.rmtree(path, ignore_errors=True)
            continue
        with contextlib.suppress(Timeout), FileLock(lock_of(owner), timeout=0):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def hold_lock(path: Path, on_wait: Callable[[], None]):
    """Hold the lock file; call `on_wait` if another process holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def lock_of(target: Path) -> Path:
    """Return the lock file of a target. It is never deleted: otherwise two processes could hold 'the' lock."""
    return target.with_name(f".{target.name}.lock")


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
