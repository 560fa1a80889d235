"""The command `tailrace-conform URL`, which `tailrace conform URL` calls too: judge a server, print and write reports.

Exit codes: 0 if every law that was judged holds or is not offered, 1 if a law is broken or a field silently ignored, 2
for misuse, 130 if laws are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tailrace_conform import __version__
from tailrace_conform.context import BUDGETS
from tailrace_conform.errors import ConformError
from tailrace_conform.law import Law
from tailrace_conform.laws import FAMILIES, all_laws
from tailrace_conform.report import WRITERS, write
from tailrace_conform.report.text import ending, line
from tailrace_conform.runner import ConformRun, Runner, RunState, chosen
from tailrace_conform.target import TargetServer, check_target

HOLDS, FOUND, MISUSED, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these words, or with the process's own. Return the exit code."""
    description = "Judge an OpenAI-compatible server by laws of samplers and streams."
    layout = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(prog="tailrace-conform", description=description, formatter_class=layout)
    parser.add_argument("--version", action="version", version=f"tailrace-conform {__version__}")
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except ConformError as error:
        print(f"tailrace-conform: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        sys.stderr.close()
        return FOUND


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the server, the choice of laws, the budget and the reports to a parser."""
    parser.add_argument("url", nargs="?", help="the server's base, as http://host:8000/v1")
    parser.add_argument("--model", default="", help="the model to ask; the first that is listed unless given")
    parser.add_argument("--api-key", default="", help="or the environment's OPENAI_API_KEY; never in a report")
    parser.add_argument(
        "--only", default="", metavar="LAWS", help=f"ids or families ({', '.join(FAMILIES)}), by commas"
    )
    parser.add_argument("--skip", default="", metavar="LAWS", help="ids or families to leave out, by commas")
    parser.add_argument("--budget", choices=BUDGETS, default="normal", help="how many requests a law may send")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at once, at most; laws of load use more")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds without a byte that count as a hang")
    parser.add_argument("--seed", type=int, default=0, help="of the run's own choices")
    parser.add_argument("--list", action="store_true", help="list the laws and end")
    for kind in WRITERS:
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write the report as {kind} too")


def run(args: argparse.Namespace) -> int:
    """Judge, print and write the reports; return the exit code. An interruption ends the run, not the report.

    Raises:
        ConformError: a setting is wrong, or the server cannot be judged.
    """
    laws = chosen(all_laws(), names(args.only), names(args.skip))
    if args.list:
        for law in laws:
            print(f"{law.id:<28} {law.sentence}")
        return HOLDS
    check_target(args.url or "", args.concurrency, args.timeout)
    for kind in WRITERS:
        check_report(kind, getattr(args, kind))
    found = asyncio.run(judge(args, laws))
    print(ending(found), end="")
    write(found, {kind: getattr(args, kind) for kind in WRITERS})
    if found.interrupted:
        return INTERRUPTED
    return FOUND if found.findings else HOLDS


def check_report(kind: str, path: Path | None) -> None:
    """Raise ConformError unless a report can be written there: a run takes minutes."""
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise ConformError(f"--{kind}: {path} can't be written")


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


async def judge(args: argparse.Namespace, laws: list[Law]) -> ConformRun:
    """Return the run, or the part that was done when SIGINT or SIGTERM ended it."""
    key = args.api_key or os.environ.get("OPENAI_API_KEY", "")
    server = TargetServer(args.url, args.model, key, args.concurrency, args.timeout)
    runner = Runner(server, laws, BUDGETS[args.budget], args.seed)
    runner.on_progress = ProgressLine()
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # on Windows; Ctrl-C works there too
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await runner.run()
    finally:
        await server.close()


class ProgressLine:
    """A line per law on stdout, as it is judged; where stderr is a terminal, below it a line that is written anew."""

    def __init__(self) -> None:
        self.tty = sys.stderr.isatty()

    def __call__(self, state: RunState) -> None:
        if self.tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if state.judged:
            print(line(state.judged), flush=True)
        if self.tty and state.num_done < state.num_laws:
            left = "" if state.left_s is None else f", about {state.left_s:.0f} s left"
            text = f"{state.num_done}/{state.num_laws} laws, {state.num_requests} requests{left}: {state.law}"
            print(text, end="", file=sys.stderr, flush=True)
