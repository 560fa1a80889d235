"""The process that compiles grammars: python -m tailrace.grammar.worker.

It imports the library and reads the vocabulary once. Then it forks children, which compile one grammar after the other.
So a new child is ready within milliseconds, and a child may be killed at any time.

The parent sends commands on the socket that is stdin, each one packet of MessagePack. A command may carry a socket: of
the vocabulary, or of a child. These sockets carry messages of four bytes of length and MessagePack. The process ends
when stdin does, and a child ends when its socket does. What the libraries print is discarded.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import msgspec

from tailrace.base.framed_pipes import MIB
from tailrace.base.process_limits import end_with_parent
from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError, check_grammar
from tailrace.grammar.compile_messages import (
    FINAL_OUTCOMES,
    MAX_TEXT,
    Command,
    Reply,
    Task,
    WorkerHello,
    receive_command,
    receive_message,
    send_message,
)
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar

if TYPE_CHECKING:
    from tailrace.grammar.llguidance import GrammarCompiler

# Half of the stack that Linux gives the engine's threads, which load the result: recursion that fits here fits there.
STACK = 4 * MIB
FAST_MEMORY = 4  # In the fast lane a grammar may take this fraction of its memory.
SLOW_NICE = 10  # Priority of the slow lane: about a tenth of the processor time of the others, if all cores are busy.
WARM_UP = Grammar(
    kind="json_schema",
    source='{"properties": {"a": {"type": "string", "pattern": "^a"}, "b": {"format": "date"}, "c": {"enum": [1]}}}',
)


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK)
    if (first := receive_command(control)) is None or first[1] is None:
        return
    with first[1] as channel:
        hello = receive_message(channel, WorkerHello)
    if hello is not None:
        library = load_compiler(hello.vocabulary)
        compile_grammar(library, WARM_UP)  # What is made once is made here, not in each child.
        gc.freeze()  # so that a child's collector does not copy the parent's memory
        Forker(control, library, hello.memory_mib * MIB).serve()


@dataclass(frozen=True, slots=True)
class ForkedChild:
    """A child. channel: of its messages. alive: a pipe that closes when the child ends."""

    number: int
    pid: int
    channel: socket.socket
    alive: int


class Forker:
    """The loop that forks, demotes, kills and collects children. It does nothing else, so it always answers soon."""

    def __init__(self, control: socket.socket, library: GrammarCompiler, memory: int) -> None:
        self._control, self._library, self._memory = control, library, memory
        self._children: dict[int, ForkedChild] = {}  # by the file descriptor of `alive`
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Obey the parent until it closes the socket."""
        while True:
            for file, _ in self._poll.poll():
                if file in self._children:
                    self._collect_child(file)
                elif not self._obey_command():
                    for child in self._children.values():
                        os.kill(child.pid, signal.SIGKILL)
                        os.waitpid(child.pid, 0)
                    return

    def _obey_command(self) -> bool:
        """Obey the next command. False: there is none any more."""
        if (received := receive_command(self._control)) is None:
            return False
        command, channel = received
        if channel is not None:
            self._fork_child(command, channel)
            return True
        child = next((child for child in self._children.values() if child.number == command.child), None)
        if child is not None and command.kind == "kill":
            os.kill(child.pid, signal.SIGKILL)
        elif child is not None:
            with suppress(OSError):  # the child or its thread has just ended
                lower_priority(command.thread)
                resource.prlimit(child.pid, resource.RLIMIT_AS, limit_memory(self._memory))
        return True

    def _fork_child(self, command: Command, channel: socket.socket) -> None:
        alive, held = os.pipe()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            send_reply(channel, Reply("broken", f"{type(error).__name__}: {error}"))
            channel.close()
            os.close(alive)
        else:
            if pid == 0:
                self._run_child(channel, parent)
            self._children[alive] = ForkedChild(command.child, pid, channel, alive)
            self._poll.register(alive, select.POLLIN)
        finally:
            os.close(held)

    def _run_child(self, channel: socket.socket, parent: int) -> NoReturn:
        try:
            self._control.close()
            for other in self._children.values():  # otherwise their sockets would stay open with this child
                other.channel.close()
                os.close(other.alive)
            if die_with_parent(parent):
                compile_grammar(self._library, WARM_UP)  # so that the child has its own copy of this memory
                self._run_tasks(channel)
        finally:
            os._exit(0)

    def _run_tasks(self, channel: socket.socket) -> None:
        while (task := receive_message(channel, Task)) is not None:
            reply = self._run_task(task, channel)
            send_message(channel, reply)
            if reply.outcome in FINAL_OUTCOMES:
                return

    def _run_task(self, task: Task, channel: socket.socket) -> Reply:
        """Compile on a thread of its own, for its stack size and its priority, with bounded memory."""
        replies: list[Reply] = []
        before_s, hard = time.process_time(), resource.getrlimit(resource.RLIMIT_AS)[1]

        def work() -> None:
            if task.slow or task.background:
                lower_priority(0)
            send_message(channel, Reply("ready", pid=os.getpid(), thread=threading.get_native_id(), cpu_s=before_s))
            memory = self._memory if task.slow else self._memory // FAST_MEMORY
            resource.setrlimit(resource.RLIMIT_AS, limit_memory(memory))
            replies.append(compile_grammar(self._library, task.grammar))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        reply = replies[0] if replies else Reply("memory")
        return msgspec.structs.replace(reply, cpu_s=time.process_time() - before_s)

    def _collect_child(self, file: int) -> None:
        """Note that a child has ended. If the child has sent an outcome, the parent reads no more."""
        child = self._children.pop(file)
        self._poll.unregister(file)
        os.close(file)
        _, status, usage = os.wait4(child.pid, 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        send_reply(child.channel, Reply("ended", cpu_s=usage.ru_utime + usage.ru_stime, signal=number))
        child.channel.close()


def send_reply(channel: socket.socket, reply: Reply) -> None:
    """Send a short message, unless nobody reads."""
    with suppress(OSError):
        send_message(channel, reply, socket.MSG_DONTWAIT)


def lower_priority(thread: int) -> None:
    """Give a thread the priority of the slow lane; 0: the calling thread. Linux has priorities of threads."""
    os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + SLOW_NICE, 19))


def limit_memory(memory: int) -> tuple[int, int]:
    """Return a limit of the address space: what this process has, and `memory` bytes more."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = read_memory_size("VmSize") + memory
    return most if hard == resource.RLIM_INFINITY else min(most, hard), hard


def die_with_parent(parent: int) -> bool:
    """End with the parent (Linux only): a child must not compute for an engine that is gone. False: it has ended."""
    end_with_parent()
    return os.getppid() == parent


def load_compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    """Import and make the compiler. The import takes up to a second, so it happens at the first call of a process."""
    from tailrace.grammar.llguidance import GrammarCompiler

    return GrammarCompiler(vocabulary)


def compile_grammar(library: GrammarCompiler, grammar: Grammar) -> Reply:
    before = read_memory_size("RssAnon")
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
    size = max(len(text), read_memory_size("RssAnon") - before)
    return Reply("compiled", text, size) if len(text) <= MAX_TEXT else Reply("big", "", size)


def read_memory_size(name: str) -> int:
    """Return a size of this process in bytes. name: VmSize or RssAnon."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
