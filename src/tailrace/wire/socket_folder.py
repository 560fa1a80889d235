"""A folder of its own for an engine's socket, in a place that is short enough for a socket's address.

The owner holds a lock on a file in the folder as long as it lives, whatever ends it. A folder whose lock is free is
stale, and the next start deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tailrace.errors import ConfigError

PREFIX = "tailrace-"
SOCKET, PULSE, LOCK = "engine", "pulse", "owner.lock"
UNNAMED_LOCK = LOCK + ".new"
FALLBACKS = ("/tmp", "/var/tmp", "/dev/shm")
RANDOM_CHARS = 8  # that mkdtemp adds to the prefix


class SocketFolder:
    """A new folder that only this user may enter. `remove` deletes it.

    Args:
        limit: most bytes of the socket's path.

    Raises:
        ConfigError: no folder for temporary files is short enough and can be written.
    """

    def __init__(self, limit: int) -> None:
        reasons: list[str] = []
        for parent in list_parents():
            if len(os.fsencode(f"{parent}/{PREFIX}/{SOCKET}")) + RANDOM_CHARS > limit:
                reasons.append(f"{parent} is too long for a socket")
                continue
            try:
                remove_stale(parent)
                self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)  # mode 0700
                self._lock = lock_folder(self.path)
                return
            except OSError as error:
                reasons.append(f"{parent}: {error.strerror or error}")
        places = "; ".join(reasons) or "no temporary folder exists"
        raise ConfigError(f"there is no folder for the engine's socket; set TMPDIR to a short path ({places})")

    @property
    def socket(self) -> str:
        """The path of the socket."""
        return f"{self.path}/{SOCKET}"

    def remove(self) -> None:
        """Delete the folder. Idempotent."""
        delete_folder(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def list_parents() -> list[str]:
    """Return the folders that may hold the socket's folder, the user's choice first."""
    chosen = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    places = [*chosen, *FALLBACKS, os.environ.get("XDG_RUNTIME_DIR", "")]
    found = [os.path.abspath(path) for path in places if path and os.path.isdir(path)]
    return [path for path in dict.fromkeys(found) if path.isprintable()]  # an address is text


def lock_folder(folder: str) -> int | None:
    """Lock the folder for this process. Return the lock's descriptor, or None if the file system has no locks.

    The file gets its name when it is locked, so another start never finds it unlocked.
    """
    descriptor = os.open(f"{folder}/{UNNAMED_LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    os.rename(f"{folder}/{UNNAMED_LOCK}", f"{folder}/{LOCK}")
    return descriptor


def remove_stale(parent: str) -> None:
    """Delete this user's folders whose owner has ended. A folder without a lock file is never touched."""
    for folder in list_own(parent):
        with contextlib.suppress(OSError):  # its owner holds the lock, or another start deletes it
            descriptor = os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete_folder(folder)
            finally:
                os.close(descriptor)


def list_own(parent: str) -> Iterator[str]:
    """Yield the folders in `parent` that have our prefix and belong to this user."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX):
                continue
            with contextlib.suppress(OSError):  # it is gone already
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    yield entry.path


def delete_folder(folder: str) -> None:
    """Delete our files and the folder. It stays if it holds anything else."""
    for name in (SOCKET, PULSE, LOCK, UNNAMED_LOCK):
        with contextlib.suppress(OSError):
            Path(folder, name).unlink()
    with contextlib.suppress(OSError):
        Path(folder).rmdir()
