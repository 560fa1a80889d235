"""A further front end of engines that another process owns: started by api/workers.py.

Its settings are the first line of stdin; the lines after it tell of the engines (wire/remote_engine.py). When stdin
closes, its owner is gone: its streams end with an error event, and it exits. On SIGTERM it finishes what runs, then
exits. It reports to its owner, one WorkerStatus per line.
"""

from __future__ import annotations

import io
import os

import msgspec

from tailrace.api.serve import serve_attached
from tailrace.api.workers import WorkerStart, WorkerStatus
from tailrace.text.chosen_template import load_tokenizer


def run_process(status: int) -> int:
    """Return the exit code of the server. status: the descriptor to report to."""
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
