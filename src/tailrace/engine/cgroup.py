"""What the control groups of this process leave of the machine's memory: a container may have far less than the
machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# version 2 and 1: the files of the limit and of what is used, and the entry of memory.stat for files that may be
# dropped
NAMES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def left(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that may still be taken: the least of all groups that hold this process; None: none has a limit."""
    rooms = [
        room for folder in folders(mount, membership) for names in NAMES if (room := of(folder, *names)) is not None
    ]
    return min(rooms, default=None)


def folders(mount: Path, membership: Path) -> Iterator[Path]:
    """Those of the groups, each with all above it. Within a container the path may be the machine's, which is not
    there: what is mounted is then the container's own group."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = mount / "memory" if controllers else mount
        folder = top / path.strip("/")
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def of(folder: Path, limit: str, used: str, droppable: str) -> int | None:
    """What one group leaves; None: it has no limit."""
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return None
        taken = int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(most) - taken + int(stat.get(droppable, 0)))
    except (OSError, ValueError):
        return None
