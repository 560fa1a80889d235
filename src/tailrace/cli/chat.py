"""`tailrace chat`: a conversation in the terminal, with a server (--url) or with an engine of its own.

This module knows nothing of HTTP or tokens: see chat_backends.py. Ctrl-C ends the answer, not the conversation. Piped
input works too.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from contextlib import AbstractContextManager

from tailrace.cli.chat_backends import ChatBackend, Message, local_backend, remote_backend
from tailrace.cli.flags import ENGINE_SECTIONS, add_config_flags, add_sampling_flags
from tailrace.errors import EngineError, RequestError

HELP = "/reset forgets all, /system TEXT sets the system message, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for the server or model, the system message, settings and sampling."""
    parser.add_argument("--url", help="of a running server, such as http://localhost:8000; none: start an engine here")
    parser.add_argument("--api-key", help="for --url")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_config_flags(parser, ENGINE_SECTIONS)
    add_sampling_flags(parser)


class ChatSession:
    """The conversation so far."""

    def __init__(self, backend: ChatBackend, system: str | None) -> None:
        self.backend, self.system = backend, system
        self.messages: list[Message] = []

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages = []

    def send(self, text: str) -> None:
        """Send a message and print the answer as it arrives.

        If interrupted, the answer so far is kept. If there is no answer, or the request failed, the message is dropped.
        """
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        answer: list[str] = []
        ending = ""
        try:
            with contextlib.closing(
                self.backend([*system, *self.messages, {"role": "user", "content": text}])
            ) as deltas:
                for delta in deltas:
                    answer.append(delta)
                    print(delta, end="", flush=True)
        except KeyboardInterrupt:
            ending = " [stopped]"
        finally:
            print(ending, flush=True)
            if answer:
                self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "".join(answer)}]


def run(args: argparse.Namespace) -> int:
    """Hold the conversation until the input ends or /quit."""
    source: AbstractContextManager[ChatBackend] = remote_backend(args) if args.url else local_backend(args)
    with source as backend:
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives input() line editing and history
            print(HELP, file=sys.stderr)
        return read_lines(ChatSession(backend, args.system))


def read_lines(conversation: ChatSession) -> int:
    """Read lines: messages and commands. Exit code 1 if the engine is lost, or if a request failed on piped input."""
    interactive = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print("\n(Ctrl-D ends)", file=sys.stderr)
            continue
        if line.startswith("/"):
            if line in ("/quit", "/exit", "/bye"):
                return 0
            run_command(line, conversation)
        elif line:
            try:
                conversation.send(line)
            except RequestError as error:
                print(f"tailrace: {error}", file=sys.stderr)
                if not interactive:
                    return 1
            except EngineError as error:
                print(f"tailrace: {error}", file=sys.stderr)
                return 1


def run_command(line: str, conversation: ChatSession) -> None:
    """Run a line that begins with a slash."""
    command, _, rest = line.partition(" ")
    if command == "/reset":
        conversation.reset()
    elif command == "/system":
        conversation.system = rest.strip() or None
    else:
        print(HELP if command == "/help" else f"no command {command}; {HELP}", file=sys.stderr)
