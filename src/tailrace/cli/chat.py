"""`tailrace chat`: a conversation in the terminal, with a server (--url) or with an engine of its own.

Knows nothing of HTTP or tokens: see voices.py. Ctrl-C ends the answer, not the conversation; piped input works too.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from contextlib import AbstractContextManager

from tailrace.cli.flags import ENGINE_SECTIONS, add_config_flags, add_sampling_flags
from tailrace.cli.voices import Message, Voice, local_voice, remote_voice
from tailrace.errors import EngineError, RequestError

HELP = (
    "/reset forgets what was said, /system TEXT sets the system message, /quit or Ctrl-D ends, Ctrl-C stops an answer"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the model is, who it is told to be, settings, sampling."""
    parser.add_argument("--url", help="of a running server, such as http://localhost:8000; none: start an engine here")
    parser.add_argument("--api-key", help="for --url")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_config_flags(parser, ENGINE_SECTIONS)
    add_sampling_flags(parser)


class ChatSession:
    """What has been said so far."""

    def __init__(self, voice: Voice, system: str | None) -> None:
        self.voice, self.system = voice, system
        self.messages: list[Message] = []

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages = []

    def say(self, text: str) -> None:
        """Put a message to the model and print its answer as it comes. Interrupted, what was said so far is kept; if
        nothing was said, or the request failed, the message is taken back."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        said: list[str] = []
        ending = ""
        try:
            with contextlib.closing(self.voice([*system, *self.messages, {"role": "user", "content": text}])) as deltas:
                for delta in deltas:
                    said.append(delta)
                    print(delta, end="", flush=True)
        except KeyboardInterrupt:
            ending = " [stopped]"
        finally:
            print(ending, flush=True)
            if said:
                self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "".join(said)}]


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends or /quit."""
    source: AbstractContextManager[Voice] = remote_voice(args) if args.url else local_voice(args)
    with source as voice:
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives input() line editing and history
            print(HELP, file=sys.stderr)
        return talk(ChatSession(voice, args.system))


def talk(conversation: ChatSession) -> int:
    """Read lines and obey them. Exit code 1 if the engine is lost, or if a request failed on piped input."""
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
            obey(line, conversation)
        elif line:
            try:
                conversation.say(line)
            except RequestError as error:
                print(f"tailrace: {error}", file=sys.stderr)
                if not interactive:
                    return 1
            except EngineError as error:
                print(f"tailrace: {error}", file=sys.stderr)
                return 1


def obey(line: str, conversation: ChatSession) -> None:
    """A line that begins with a slash."""
    command, _, rest = line.partition(" ")
    if command == "/reset":
        conversation.reset()
    elif command == "/system":
        conversation.system = rest.strip() or None
    else:
        print(HELP if command == "/help" else f"no command {command}; {HELP}", file=sys.stderr)
