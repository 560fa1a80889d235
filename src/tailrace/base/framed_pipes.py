"""Messages between our processes, on pipes and sockets: each as four bytes of length and data. `take_stdout` is for the
child's side of a process behind pipes (child_process.py). Knows nothing of what the messages mean."""

from __future__ import annotations

import os
import resource
import signal
import struct
from collections.abc import Callable
from typing import IO

MIB = 1 << 20
LENGTH = struct.Struct("<I")
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they reach the whole process group; the parent decides


class MessageTooBigError(Exception):
    """The other process announces a message of more bytes than allowed.

    Attributes:
        size: bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def frame_data(data: bytes) -> bytes:
    """Return a message's data with its length before it."""
    return LENGTH.pack(len(data)) + data


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write a message."""
    stream.write(frame_data(data))
    stream.flush()


def read_frame(receive: Callable[[int], bytes], max_bytes: int | None = None) -> bytes | None:
    """Return the next message's data; None at the end.

    Args:
        receive: returns at most so many bytes, and none at the end: `recv` of a socket, `read` of a stream.

    Raises:
        MessageTooBigError: see there.
    """
    if (head := read_exactly(receive, LENGTH.size)) is None:
        return None
    (size,) = LENGTH.unpack(head)
    if max_bytes is not None and size > max_bytes:
        raise MessageTooBigError(size)
    return read_exactly(receive, size)


def read_exactly(receive: Callable[[int], bytes], size: int) -> bytes | None:
    """Return so many bytes; None if the end comes before."""
    data = bytearray()
    while len(data) < size:
        if not (part := receive(min(size - len(data), MIB))):
            return None
        data += part
    return bytes(data)


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
