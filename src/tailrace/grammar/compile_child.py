"""The engine's side of one child of the compiling process: the sockets, the running task, and how an attempt ended."""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass
from typing import Literal

from tailrace.base.child_process import read_cpu_s
from tailrace.base.framed_pipes import MIB, MessageTooBigError
from tailrace.grammar.compile_messages import MAX_TEXT, Command, Reply, receive_message, send_command
from tailrace.grammar.fair_schedule import SLICE_S

WATCH_S = (0.01, 0.25)  # Shortest and longest time between two looks at a child's processor time.
MAX_REPLY = 4 * MAX_TEXT + MIB  # bytes of a message; a character takes up to four
NO_REPLY = Reply("ended")
End = Literal["reply", "timeout", "starved", "stopped", "crashed", "killed", "unstarted"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """How the compilation of a grammar ended, after `cpu_s` seconds of processor time.

    - reply: with an outcome.
    - timeout: after its processor time. starved: it got almost no processor time.
    - stopped: the caller wished so.
    - crashed: by a fault of its own. killed: from outside.
    - unstarted: the process has ended (text), or did not answer, before the grammar began.
    """

    end: End
    cpu_s: float = 0.0
    reply: Reply = NO_REPLY
    text: str = ""


class LostError(Exception):
    """The process or the child has ended without an outcome."""


@dataclass(frozen=True, slots=True)
class CompileChild:
    """A child of the process, and the sockets to both."""

    control: socket.socket
    channel: socket.socket
    number: int

    def send(self, kind: Literal["demote", "kill"], thread: int = 0) -> None:
        send_command(self.control, Command(kind, self.number, thread))

    def wait_for_reply(self, used_s: float) -> bool:
        """Wait until there is something to read, or until it is time to look at the processor time again."""
        shortest, longest = WATCH_S
        wait_s = max(SLICE_S - used_s, shortest) if used_s < SLICE_S else longest
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))


@dataclass(slots=True)
class RunningTask:
    """A task that a child has begun. slow: its lane now."""

    ready: Reply
    slow: bool

    def read_cpu_s(self) -> float:
        """Return the processor time so far; 0 if the child has just ended."""
        return max(0.0, read_cpu_s(self.ready.pid) - self.ready.cpu_s)


def read_reply(channel: socket.socket) -> Reply:
    """Read a message.

    Raises:
        LostError: the other side has ended. TimeoutError: it does not answer.
    """

    try:
        reply = receive_message(channel, Reply, MAX_REPLY)
    except MessageTooBigError as error:
        return Reply("big", resident=error.size)
    if reply is None:
        raise LostError
    return reply
