"""The process in which grammars are compiled: python -m tailrace.grammar.worker. It may be killed at any time.

Reads messages from stdin and writes messages to its original stdout, each as four bytes of length and MessagePack. Ends
when stdin does. What the libraries print is discarded.
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
from tailrace.grammar.check import UnsupportedError, check_grammar
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar

if TYPE_CHECKING:
    from tailrace.grammar.llguidance import GrammarCompiler

MIB = 1 << 20
LENGTH = struct.Struct("<I")
# Half of the stack that Linux gives the engine's threads, which load the result: recursion that fits here fits there.
STACK = 4 * MIB
MAX_TEXT = 32 * MIB  # of a compiled grammar; loading blocks the interpreter for milliseconds per MiB
FINAL_OUTCOMES = ("memory", "broken")  # outcomes after which the process ends
PR_SET_PDEATHSIG = 1
ORPHAN_S = 5  # a process that nobody kills ends this long after its time limit
T = TypeVar("T")


class WorkerHello(msgspec.Struct, frozen=True):
    """The first message. memory_mib: address space that one grammar may take."""

    vocabulary: Vocabulary
    memory_mib: int
    timeout_s: float


class Reply(msgspec.Struct, frozen=True):
    """The outcome of a grammar.

    - ready: the library is loaded, and the time limit starts now.
    - compiled: `text` is for GrammarCompiler.load. Making it took `resident` bytes.
    - big: `text` would exceed MAX_TEXT and is left out.
    - unsupported, invalid: `text` gives the reason.
    - memory: the memory did not suffice, and this process ends.
    - broken: an error of ours.
    """

    outcome: Literal["ready", "compiled", "big", "unsupported", "invalid", "memory", "broken"]
    text: str = ""
    resident: int = 0


def frame_message(message: msgspec.Struct) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def send_message(stream: IO[bytes], message: msgspec.Struct) -> None:
    stream.write(frame_message(message))
    stream.flush()


def receive_message(stream: IO[bytes], kind: type[T]) -> T | None:
    """Return the next message; None at the end."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK)
    if (hello := receive_message(sys.stdin.buffer, WorkerHello)) is None:
        return
    library = load_compiler(hello.vocabulary)
    while (grammar := receive_message(sys.stdin.buffer, Grammar)) is not None:
        send_message(answers, Reply("ready"))
        reply = run_bounded(partial(compile_grammar, library, grammar), hello)
        send_message(answers, reply)
        if reply.outcome in FINAL_OUTCOMES:
            return


def die_with_parent() -> None:
    """End with the parent (Linux only).

    The process notices the end of stdin only between grammars, and it must not compute for an engine that is gone. The
    kernel kills it when the thread that started it ends; normally that thread closes it before. If the parent has ended
    already, stdin is closed.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def load_compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    """Import and make the compiler. The import takes up to a second, so it happens at the first call of a process."""
    from tailrace.grammar.llguidance import GrammarCompiler

    return GrammarCompiler(vocabulary)


def compile_grammar(library: GrammarCompiler, grammar: Grammar) -> Reply:
    before = read_memory_size("VmRSS")
    try:
        check_grammar(grammar)
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
    size = max(len(text), read_memory_size("VmRSS") - before)
    return Reply("compiled", text, size) if len(text) <= MAX_TEXT else Reply("big", "", size)


def run_bounded(work: Callable[[], Reply], hello: WorkerHello) -> Reply:
    """Run the work on a thread of its own, for its stack size, with bounded memory. The alarm's default action ends the
    process even inside a library."""
    replies: list[Reply] = []
    signal.setitimer(signal.ITIMER_REAL, hello.timeout_s + ORPHAN_S)
    thread = threading.Thread(target=lambda: replies.append(work()))
    thread.start()
    resource.setrlimit(
        resource.RLIMIT_AS, (read_memory_size("VmSize") + hello.memory_mib * MIB, resource.RLIM_INFINITY)
    )
    thread.join()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return replies[0] if replies else Reply("memory")


def read_memory_size(name: str) -> int:
    """Return a size of this process in bytes. name: VmSize or VmRSS."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
