"""`tailrace`: one subcommand per file, found through a table; each is imported only when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from tailrace import __version__
from tailrace.errors import ConfigError, RequestError, TailraceError

# name → (module with `add_arguments(parser)` and `run(arguments) -> int`, one line of help)
COMMANDS = {
    "serve": ("tailrace.cli.serve", "serve a model over HTTP, OpenAI-compatible"),
    "chat": ("tailrace.cli.chat", "talk with a model in the terminal"),
    "generate": ("tailrace.cli.generate", "continue prompts, without a server"),
    "doctor": ("tailrace.cli.doctor", "print versions, devices, kernels, cache folder"),
    "bench": ("tailrace.cli.bench", "run a benchmark of the project"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 good, 1 it failed, 2 it was asked wrongly."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser("tailrace", description="From a model's logits to streamed text.")
    parser.add_argument("--version", action="version", version=f"tailrace {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = next((word for word in words if word in COMMANDS), None)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == named:  # only the one that is called is imported
            import_module(module).add_arguments(command)
    arguments = parser.parse_args(words)
    try:
        return import_module(COMMANDS[arguments.command][0]).run(arguments)
    except (ConfigError, RequestError) as error:
        print(f"tailrace {arguments.command}: {error}", file=sys.stderr)
        return 2
    except TailraceError as error:
        print(f"tailrace {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
