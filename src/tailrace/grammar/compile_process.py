"""The engine's side of the compiling process (worker.py): it starts the process, sends it grammars, and ends a grammar
that takes too much.

Time is the processor time of the grammar's own child. So a grammar is never refused because other grammars, or other
programs, kept the cores busy.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from tailrace.base.child_process import CRASHES, EXIT_S
from tailrace.base.python_command import make_python_command
from tailrace.config import GrammarConfig
from tailrace.grammar.compile_child import Attempt, CompileChild, End, LostError, RunningTask, read_reply
from tailrace.grammar.compile_messages import FINAL_OUTCOMES, Command, Task, WorkerHello, send_command, send_message
from tailrace.grammar.fair_schedule import SLICE_S
from tailrace.grammar.vocabulary import Vocabulary

START_S = 120.0  # for the process to import a library and read the vocabulary; takes seconds on an idle machine
STARVED = 60  # A grammar ends after this many times its time limit by the clock.


class CompileProcess:
    """The compiling process. It starts with the first grammar, and again after a loss. Any thread may call anything."""

    def __init__(self, vocabulary: Vocabulary, config: GrammarConfig) -> None:
        self._hello, self._timeout_s = WorkerHello(vocabulary, config.memory_mib), config.timeout_s
        self._max_idle = config.workers
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[CompileChild] = []
        self._busy: set[int] = set()
        self._numbers = count()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    @property
    def children(self) -> list[int]:
        """Ids of the children that compile grammars."""
        return sorted(self._busy)

    def run(self, task: Task, may_continue: Callable[[float], bool]) -> Attempt:
        """Compile a grammar in one of the lanes.

        may_continue: called again and again, with the used processor time, once that is SLICE_S. If it returns False,
        the grammar is stopped. Otherwise a grammar of the fast lane gets all of the memory and a low priority.
        """
        worked = self._process is not None
        attempt = self._run_once(task, may_continue, self._idle)
        if attempt.end == "killed" or (attempt.end == "unstarted" and worked and attempt.text == "ended"):
            attempt = self._run_once(task, may_continue, [])  # a loss that the grammar did not cause
        return attempt

    def close(self) -> None:
        """End the process and its children, for good."""
        self._closed = True
        if not self._lock.acquire(timeout=EXIT_S):  # a thread is starting the process
            self._kill_process()
            self._lock.acquire()
        self._drop_process()
        self._lock.release()

    def _run_once(self, task: Task, may_continue: Callable[[float], bool], idle: list[CompileChild]) -> Attempt:
        child: CompileChild | None = None
        try:
            child = self._take_child(idle)
            send_message(child.channel, task)
            ready = read_reply(child.channel)
        except TimeoutError:
            self._kill_process()
            return Attempt("unstarted", text="did not answer in time")
        except (OSError, LostError):
            self._drop_lost(child)
            return Attempt("unstarted", text="ended")
        if ready.outcome != "ready":
            child.channel.close()
            return Attempt("unstarted", text="ended") if ready.outcome == "ended" else Attempt("reply", reply=ready)
        self._busy.add(ready.pid)
        try:
            attempt = self._watch_child(child, RunningTask(ready, task.slow), may_continue)
        finally:
            self._busy.discard(ready.pid)
        self._release_child(child, attempt)
        return attempt

    def _watch_child(self, child: CompileChild, running: RunningTask, may_continue: Callable[[float], bool]) -> Attempt:
        """Wait for the outcome of a task. End the child if it may not continue."""
        used_s, until = 0.0, time.monotonic() + self._timeout_s * STARVED
        try:
            while not child.wait_for_reply(used_s):
                used_s = running.read_cpu_s()
                if (end := self._check_child(used_s, until, may_continue)) is not None:
                    child.send("kill")
                    return Attempt(end, used_s)
                if used_s >= SLICE_S and not running.slow:
                    child.send("demote", running.ready.thread)
                    running.slow = True
            reply = read_reply(child.channel)
        except (OSError, LostError):
            self._drop_lost(child)
            return Attempt("killed", used_s)
        if reply.outcome != "ended":
            return Attempt("reply", reply.cpu_s, reply)
        outside = reply.signal and reply.signal not in CRASHES
        return Attempt("killed" if outside else "crashed", used_s)

    def _check_child(self, used_s: float, until: float, may_continue: Callable[[float], bool]) -> End | None:
        """Return why a child must end; None if it continues."""
        if used_s >= self._timeout_s:
            return "timeout"
        if time.monotonic() >= until:
            return "starved"
        return "stopped" if used_s >= SLICE_S and not may_continue(used_s) else None

    def _take_child(self, idle: list[CompileChild]) -> CompileChild:
        """Return an idle child, or a new one. If none is left idle, fork a spare one for the next grammar."""
        control = self._start_process()
        with self._lock:
            child = idle.pop() if idle else self._fork_child(control)
            if not self._idle:
                self._idle.append(self._fork_child(control))
        return child

    def _release_child(self, child: CompileChild, attempt: Attempt) -> None:
        """Keep a child for the next grammar, unless it has ended or may hold much memory."""
        small = attempt.end == "reply" and attempt.reply.outcome not in FINAL_OUTCOMES and attempt.cpu_s < SLICE_S
        with self._lock:
            if small and child.control is self._control and len(self._idle) <= self._max_idle:
                self._idle.append(child)
            else:
                child.channel.close()

    def _fork_child(self, control: socket.socket) -> CompileChild:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_S)
        child = CompileChild(control, ours, next(self._numbers))
        with theirs:
            send_command(control, Command("fork", child.number), theirs)
        return child

    def _start_process(self) -> socket.socket:
        """Return the socket for commands of the running process."""
        with self._lock:
            if self._closed:
                raise LostError
            if self._control is not None and self._process is not None and self._process.poll() is None:
                return self._control
            self._drop_process()
            try:
                return self._spawn_process()
            except BaseException:
                self._kill_process()
                self._drop_process()
                raise

    def _spawn_process(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(START_S)
        # one arena: each further one would count as 64 MiB of address space; no threads: the process forks
        single = {"MALLOC_ARENA_MAX": "1", "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                make_python_command("tailrace.grammar.worker"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **single, "OMP_NUM_THREADS": "1"},
            )
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                send_command(self._control, Command("hello"), theirs)
            ours.settimeout(START_S)
            send_message(ours, self._hello)
        return self._control

    def _kill_process(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def _drop_lost(self, child: CompileChild | None) -> None:
        """Drop the process of this child. It has ended, though the system may not know yet."""
        if child is not None:
            child.channel.close()
            with self._lock:
                if child.control is self._control:
                    self._kill_process()
                    self._drop_process()

    def _drop_process(self) -> None:
        """Wait for the end of the process, which ends its children when its socket closes."""
        while self._idle:
            self._idle.pop().channel.close()
        process, self._process = self._process, None
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_S)
            process.kill()
            process.wait()
