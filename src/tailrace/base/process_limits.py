"""The limits that the system sets to this process and its children: open files, memory and threads."""

from __future__ import annotations

import contextlib
import threading

from tailrace.errors import ConfigError

MAX_FILES = 65_536
MIN_FILES = 128  # with which a start and a few connections succeed
MIN_THREADS = 32  # of the server's processes together, and these processes count as threads
MIN_MIB = {  # with less, libraries end the process without a reason: limits by their names in `resource` and `ulimit`
    "RLIMIT_AS": ("address space", "ulimit -v", 1024),
    "RLIMIT_DATA": ("data", "ulimit -d", 384),
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


def check_memory() -> None:
    """Check that the process may have the memory that libraries need.

    Raises:
        ConfigError: a limit is too low.
    """
    try:
        import resource
    except ImportError:
        return
    for name, (what, command, least) in MIN_MIB.items():
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY and soft >> 20 < least:
            text = f"{soft >> 20} MiB of {what} are too little, {least} MiB and the model's size are needed"
            raise ConfigError(f"{text}: raise the limit ({command})")


def check_limits() -> None:
    """Check that the process may have the files, the memory and the threads that it needs. Imports no library.

    Raises:
        ConfigError: a limit is too low.
    """
    if (limit := allow_files()) < MIN_FILES:
        raise ConfigError(f"{limit} open files are too few, {MIN_FILES} are needed: raise the limit (ulimit -n)")
    check_memory()
    check_threads()
