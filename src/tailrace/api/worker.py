"""A further front end of engines that another process owns: `python -m tailrace.api.worker`, started by api/workers.py.

Its settings are the first line of stdin; the lines after it tell of the engines (wire/remote_engine.py). When stdin
closes, its owner is gone and it exits at once. On SIGTERM it finishes what runs, then exits. It reports to its owner on
stdout, one WorkerStatus per line.
"""

from __future__ import annotations

import io
import logging
import os
import sys

import msgspec

from tailrace.api.serve import serve_attached
from tailrace.api.workers import WorkerStart, WorkerStatus
from tailrace.base.logs import start_inherited_logging
from tailrace.errors import TailraceError, describe_error
from tailrace.text.chosen_template import load_tokenizer

log = logging.getLogger(__name__)


def run_front_end(status: int) -> int:
    """Return the exit code of the server. status: the descriptor to report to."""
    start_inherited_logging()
    stdin = io.FileIO(0, closefd=False)  # unbuffered: the thread that reads would hold the buffer's lock at exit
    line = stdin.readline()
    if not line:
        return 0
    start = msgspec.json.decode(line, type=WorkerStart)
    tokenizers = [load_tokenizer(model.folder, model.engine.model) for model in start.models]
    report_status(status, WorkerStatus(started=True))
    return serve_attached(
        start, tokenizers, stdin.readline, lambda name: report_status(status, WorkerStatus(wanted=name))
    )


def report_status(status: int, line: WorkerStatus) -> None:
    """Write a line for the owner."""
    os.write(status, msgspec.json.encode(line) + b"\n")


def main() -> int:
    """Serve. Return 1 after a report if this process can't."""
    status = os.dup(1)
    os.dup2(2, 1)  # prints go to the log
    try:
        return run_front_end(status)
    except Exception as error:  # the owner must be able to quote any error
        log.debug("this front end can't serve", exc_info=True)
        reason = str(error) if isinstance(error, TailraceError) else describe_error(error)
        report_status(status, WorkerStatus(error=reason))
        return 1


if __name__ == "__main__":
    sys.exit(main())
