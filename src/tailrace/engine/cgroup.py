"""How much memory this process's control groups still allow. A container may have far less than the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Version 2 and version 1: the files of the limit and of the used memory, and the entry of memory.stat for file pages
# that may be dropped.
NAMES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def measure_headroom(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> int | None:
    """Return the free bytes of the tightest group of this process. None: no group has a limit."""
    rooms = [
        room
        for folder in list_groups(mount, membership)
        for names in NAMES
        if (room := read_group_headroom(folder, *names)) is not None
    ]
    return min(rooms, default=None)


def list_groups(mount: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the groups, each followed by all folders above it.

    In a container the membership file may show the host's path, which is not mounted there. The mounted folder is then
    the container's own group.
    """
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


def read_group_headroom(folder: Path, limit: str, used: str, droppable: str) -> int | None:
    """Return the free bytes of one group. None: the group has no limit."""
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return None
        taken = int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(most) - taken + int(stat.get(droppable, 0)))
    except (OSError, ValueError):
        return None
