"""The `tailrace` command: a table of subcommands. Each is a module that is imported only when it is called.

A module has `add_arguments(parser)` and `run(args) -> exit code`. Every error becomes one line on stderr: exit code 2
if the settings are at fault, else 1. TAILRACE_LOG=debug (`--log-level debug` of serve) shows the traceback as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module, metadata

from tailrace.base.logs import LEVEL_VARIABLE
from tailrace.base.process_limits import check_limits
from tailrace.base.standard_files import open_standard_files
from tailrace.cli.line_parser import LineParser
from tailrace.errors import ConfigError, RequestError, TailraceError, describe_error, escape_controls, is_shortage

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("tailrace.cli.serve", "serve a model over HTTP, OpenAI-compatible"),
    "chat": ("tailrace.cli.chat", "talk to a model in the terminal"),
    "generate": ("tailrace.cli.generate", "complete prompts without a server"),
    "explain": ("tailrace.cli.explain", "complete a prompt and say why each token came"),
    "conform": ("tailrace.cli.conform", "judge an OpenAI-compatible server by laws of samplers and streams"),
    "doctor": ("tailrace.cli.doctor", "say what is installed, what is present and what is missing"),
}
CORE = ("torch", "numpy")
FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser of all names, with the arguments of the chosen subcommand only."""
    parser = LineParser(prog="tailrace", description="From a model's logits to streamed text.")
    parser.add_argument("--version", action="version", version=f"tailrace {metadata.version('tailrace')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, help_text) in COMMANDS.items():
        layout = argparse.ArgumentDefaultsHelpFormatter
        sub = subparsers.add_parser(name, help=help_text, description=help_text + ".", formatter_class=layout)
        if name == chosen:
            import_module(module).add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand named by the first argument. Return the exit code."""
    open_standard_files()
    argv = list(sys.argv[1:] if argv is None else argv)
    chosen = argv[0] if argv else None
    try:
        if chosen in COMMANDS:
            check_limits()
        args = make_parser(chosen).parse_args(argv)
        return import_module(COMMANDS[args.command][0]).run(args)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        return FAILED
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if os.environ.get(LEVEL_VARIABLE, "").lower() == "debug":
            traceback.print_exc()
        words, code = explain_error(error, chosen)
        print(f"tailrace: {escape_controls(words)}", file=sys.stderr)
        return code


def explain_error(error: BaseException, command: str | None) -> tuple[str, int]:
    """Return one line about an error, and the exit code."""
    if isinstance(error, TailraceError):
        return str(error), MISUSED if isinstance(error, ConfigError | RequestError) else FAILED
    if isinstance(error, ModuleNotFoundError) and error.name in CORE:  # installed with --no-deps
        return f"{command} needs {' and '.join(CORE)}; {error.name} is not installed", MISUSED
    if is_shortage(error):
        return describe_error(error), FAILED
    return f"{describe_error(error)} (a bug; {LEVEL_VARIABLE}=debug shows where)", FAILED
