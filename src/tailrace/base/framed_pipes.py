"""The child's side of a process behind pipes (child_process.py): messages on stdin and stdout, each as four bytes of
length and data. Knows nothing of what the messages mean."""

from __future__ import annotations

import os
import resource
import signal
import struct
from typing import IO

MIB = 1 << 20
LENGTH = struct.Struct("<I")
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they reach the whole process group; the parent decides


def frame_data(data: bytes) -> bytes:
    """Return a message's data with its length before it."""
    return LENGTH.pack(len(data)) + data


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write a message."""
    stream.write(frame_data(data))
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the next message's data; None at the end."""
    head = stream.read(LENGTH.size)
    return None if len(head) < LENGTH.size else stream.read(LENGTH.unpack(head)[0])


def take_stdout() -> IO[bytes]:
    """Return the stream for replies. What libraries print is discarded, and the process leaves no core dump."""
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.close(nothing)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return replies
