"""A further front end of engines that another process owns: `python -m tailrace.api.worker`, started by api/workers.py.

Its settings are the first line of stdin; the lines after it tell of the engines (wire/remote_engine.py). When stdin
closes, its owner is gone and it exits at once. On SIGTERM it finishes what runs, then exits.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec

from tailrace.api.serve import serve_attached
from tailrace.api.workers import WorkerStart
from tailrace.base.logs import start_inherited_logging
from tailrace.text.tokenizer import Tokenizer


def run_front_end() -> int:
    """The exit code of the server."""
    start_inherited_logging()
    stdin = io.FileIO(0, closefd=False)  # unbuffered: the thread that reads would hold the buffer's lock at exit
    line = stdin.readline()
    if not line:
        return 0
    start = msgspec.json.decode(line, type=WorkerStart)
    tokenizers = [Tokenizer.load(Path(m.folder), m.engine.model.trust_remote_code) for m in start.models]
    return serve_attached(start, tokenizers, stdin.readline)


if __name__ == "__main__":
    sys.exit(run_front_end())
