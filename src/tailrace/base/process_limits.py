"""The limits that the system sets to this process and its children: open files, memory, processor time and threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tailrace.errors import ConfigError

MAX_FILES = 65_536
MIN_FILES = 128  # with which a start and a few connections succeed
SETTINGS_BYTES = 1 << 29  # that a library may take for a model's settings: some are numbers of objects to be made
GROWTH = threading.RLock()  # of the limit, which is the process's
DATA_FIELD = 5  # of /proc/self/statm: pages of private memory
PR_SET_PDEATHSIG = 1
MIN_THREADS = 32  # of the server's processes together, and these processes count as threads
LEAST = {  # with less, the system or a library ends the process without a reason
    # limit by its name in `resource` → the unit in bytes or seconds, the unit, what it limits, the minimum, the command
    "RLIMIT_AS": (1 << 20, "MiB", "address space", 1024, "ulimit -v"),
    "RLIMIT_DATA": (1 << 20, "MiB", "data", 384, "ulimit -d"),
    "RLIMIT_CPU": (1, "s", "processor time", 60, "ulimit -t"),
}


def allow_files() -> int:
    """Raise the limit of open files as far as allowed, and return it. Every connection is one; the usual limit is
    1,024."""
    try:
        import resource
    except ImportError:  # not everywhere
        return MAX_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_FILES
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # not always allowed
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def check_threads() -> None:
    """Check that this user may have a few more threads.

    Raises:
        ConfigError: the system refuses one. libzmq would end the process then.
    """
    enough = threading.Event()
    threads = [threading.Thread(target=enough.wait, name="trial") for _ in range(MIN_THREADS)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        text = f"{MIN_THREADS} threads are needed, and the system refuses them ({error})"
        raise ConfigError(f"{text}: raise the limit (ulimit -u, or pids.max of the control group)") from error
    finally:
        enough.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def check_amounts() -> None:
    """Check that the process may have the memory and the processor time that a start needs.

    Raises:
        ConfigError: a limit is too low.
    """
    try:
        import resource
    except ImportError:
        return
    for name, (size, unit, what, least, command) in LEAST.items():
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY and (given := soft // size) < least:
            needed = f"{least} {unit}" + (" and the model's size" if unit == "MiB" else "")
            text = f"{given} {unit} of {what} are too little, {needed} are needed"
            raise ConfigError(f"{text}: raise the limit ({command})")


@contextlib.contextmanager
def limit_growth(more_bytes: int) -> Iterator[None]:
    """Let this process take at most so many bytes of private memory more in the block. Beyond them an allocation fails,
    so that the kernel need not end a process. One thread at a time may be in such a block. Without effect where the
    system does not tell the size (macOS)."""
    with GROWTH:
        try:
            import resource

            with open("/proc/self/statm", "rb") as sizes:
                used = int(sizes.read().split()[DATA_FIELD]) * resource.getpagesize()
        except (ImportError, OSError):
            yield
            return
        before = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [limit for limit in (used + more_bytes, *before) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def end_with_parent() -> None:
    """Let the system end this process when its parent ends (Linux only)."""
    import ctypes
    import signal

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def check_limits() -> None:
    """Check that the process may have the files, memory, processor time and threads that it needs. Imports no library.

    Raises:
        ConfigError: a limit is too low.
    """
    if (limit := allow_files()) < MIN_FILES:
        raise ConfigError(f"{limit} open files are too few, {MIN_FILES} are needed: raise the limit (ulimit -n)")
    check_amounts()
    check_threads()
