"""The messages between the engine and its compiling process (worker.py), and how they are written to sockets."""

from __future__ import annotations

import socket
from typing import Literal, TypeVar

import msgspec

from tailrace.base.framed_pipes import MIB, frame_data, read_frame
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar

MAX_TEXT = 32 * MIB  # of a compiled grammar; loading blocks the interpreter for milliseconds per MiB
MAX_COMMAND = 4096  # bytes
FINAL_OUTCOMES = ("memory", "broken")  # outcomes after which a child ends
T = TypeVar("T")


class WorkerHello(msgspec.Struct, frozen=True):
    """The first message. memory_mib: address space that one grammar may take."""

    vocabulary: Vocabulary
    memory_mib: int


class Command(msgspec.Struct, frozen=True):
    """What the parent asks.

    - hello: read the WorkerHello from the socket.
    - fork: make a child, with this number, for the tasks on the socket.
    - demote: move the child, and the thread of its task, to the slow lane. kill: end the child.
    """

    kind: Literal["hello", "fork", "demote", "kill"]
    child: int = 0
    thread: int = 0


class Task(msgspec.Struct, frozen=True):
    """A grammar to compile. slow: its lane. background: with the low priority of the slow lane."""

    grammar: Grammar
    slow: bool
    background: bool


class Reply(msgspec.Struct, frozen=True):
    """The outcome of a grammar.

    - ready: the child `pid` begins with the grammar, on this `thread`. It has used `cpu_s` seconds before.
    - compiled: `text` is for GrammarCompiler.load. Making it took `resident` bytes.
    - big: `text` would exceed MAX_TEXT and is left out.
    - unsupported, invalid: `text` gives the reason.
    - memory: the memory did not suffice, and the child ends.
    - broken: an error of ours, and the child ends.
    - ended: the child ended without an outcome. `signal` ended it; 0: it exited.

    cpu_s: processor time that the grammar took.
    """

    outcome: Literal["ready", "compiled", "big", "unsupported", "invalid", "memory", "broken", "ended"]
    text: str = ""
    resident: int = 0
    pid: int = 0
    thread: int = 0
    cpu_s: float = 0.0
    signal: int = 0


def send_message(channel: socket.socket, message: msgspec.Struct, flags: int = 0) -> None:
    channel.sendall(frame_data(msgspec.msgpack.encode(message)), flags)


def receive_message(channel: socket.socket, kind: type[T], max_bytes: int | None = None) -> T | None:
    """Return the next message; None at the end."""
    data = read_frame(channel.recv, max_bytes)
    return None if data is None else msgspec.msgpack.decode(data, type=kind)


def send_command(control: socket.socket, command: Command, carried: socket.socket | None = None) -> None:
    data = msgspec.msgpack.encode(command)
    socket.send_fds(control, [data], [] if carried is None else [carried.fileno()])


def receive_command(control: socket.socket) -> tuple[Command, socket.socket | None] | None:
    """Return the next command and its socket; None at the end."""
    data, files, _, _ = socket.recv_fds(control, MAX_COMMAND, 1)
    if not data:
        return None
    return msgspec.msgpack.decode(data, type=Command), socket.socket(fileno=files[0]) if files else None
