"""The process in which grammars are compiled: python -m tailrace.grammar.worker. It may be killed at any time.

Reads messages from stdin, writes them to what was its stdout, each as four bytes of length and MessagePack; ends when stdin does. What the
libraries print goes nowhere.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Literal, TypeVar

import msgspec

from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError, check
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.options import Grammar

if TYPE_CHECKING:
    from tailrace.grammar.llguidance import Library

MIB = 1 << 20
LENGTH = struct.Struct("<I")
# Half of what Linux gives the engine's threads, which load what is made here: recursion that fits here fits there.
STACK = 4 * MIB
MAX_TEXT = 32 * MIB  # of a compiled grammar; loading holds the interpreter for milliseconds per MiB
LAST = ("memory", "broken")  # outcomes behind which a process ends
PR_SET_PDEATHSIG = 1
ORPHAN_S = 5  # how much longer than its time limit a process lives that nobody kills
T = TypeVar("T")


class WorkerHello(msgspec.Struct, frozen=True):
    """First message. memory_mib: of address space that one grammar may take."""

    vocabulary: Vocabulary
    memory_mib: int
    timeout_s: float


class Reply(msgspec.Struct, frozen=True):
    """ready: the library is loaded, time counts from now. compiled: text for Library.load, which took `resident` bytes to make.
    big: text would be over MAX_TEXT, and is left out. unsupported, invalid: text says why. memory: there was not enough; this process ends.
    broken: an error of ours."""

    outcome: Literal["ready", "compiled", "big", "unsupported", "invalid", "memory", "broken"]
    text: str = ""
    resident: int = 0


def framed(message: msgspec.Struct) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    stream.write(framed(message))
    stream.flush()


def receive(stream: IO[bytes], kind: type[T]) -> T | None:
    """None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return msgspec.msgpack.decode(stream.read(LENGTH.unpack(head)[0]), type=kind)


def main() -> None:
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK)
    if (hello := receive(sys.stdin.buffer, WorkerHello)) is None:
        return
    library = library_of(hello.vocabulary)
    while (grammar := receive(sys.stdin.buffer, Grammar)) is not None:
        send(answers, Reply("ready"))
        reply = bounded(partial(compiled, library, grammar), hello)
        send(answers, reply)
        if reply.outcome in LAST:
            return


def die_with_parent() -> None:
    """The end of stdin is seen only between grammars; an engine that is gone must not leave a process that computes on. Linux only: it
    kills this process when the thread that started it ends, which closes it anyway before. A parent that is gone already closes stdin."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def library_of(vocabulary: Vocabulary) -> Library:
    """Imported here, as it takes time: up to a second, at the first call of a process."""
    from tailrace.grammar.llguidance import Library

    return Library(vocabulary)


def compiled(library: Library, grammar: Grammar) -> Reply:
    before = memory("VmRSS")
    try:
        check(grammar)
        text = library.compile(grammar)
    except ParameterError as error:
        return Reply("invalid", str(error))
    except UnsupportedError as error:
        return Reply("unsupported", str(error))
    except RecursionError:
        return Reply("unsupported", "nested too deeply")
    except MemoryError:
        return Reply("memory")
    except Exception as error:
        return Reply("broken", f"{type(error).__name__}: {error}")
    size = max(len(text), memory("VmRSS") - before)
    return Reply("compiled", text, size) if len(text) <= MAX_TEXT else Reply("big", "", size)


def bounded(work: Callable[[], Reply], hello: WorkerHello) -> Reply:
    """On a thread of its own, for its stack, with bounded memory; the alarm's default action ends the process even inside a library."""
    replies: list[Reply] = []
    signal.setitimer(signal.ITIMER_REAL, hello.timeout_s + ORPHAN_S)
    thread = threading.Thread(target=lambda: replies.append(work()))
    thread.start()
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + hello.memory_mib * MIB, resource.RLIM_INFINITY))
    thread.join()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return replies[0] if replies else Reply("memory")


def memory(name: str) -> int:
    """Bytes of this process: VmSize, VmRSS."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
