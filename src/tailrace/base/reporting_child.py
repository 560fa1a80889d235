"""A process that reports to its parent why it fails: `python -m tailrace.base.reporting_child MODULE`.

It runs MODULE.run_process(status). The parent reads a pipe at the descriptor `status`. Each line is a JSON object; one
with `code` and `message` says why the process fails. A module that can't be imported is reported too: a library may not
fit into the memory. Text that libraries print goes to stderr, where the log is.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module

from tailrace.base.logs import start_inherited_logging
from tailrace.base.python_command import make_python_command
from tailrace.errors import TailraceError, describe_error


def make_reporting_command(module: str) -> list[str]:
    """Return the command that runs a module of ours as such a process."""
    return make_python_command(__name__, module)


def report_failure(status: int, error: BaseException) -> None:
    """Write the line that says why the process fails."""
    code, text = (error.code, str(error)) if isinstance(error, TailraceError) else ("", describe_error(error))
    os.write(status, json.dumps({"code": code or "engine_error", "message": text}).encode() + b"\n")


def main() -> int:
    """Return the exit code of the module, or 1 after a report."""
    status = os.dup(1)
    os.dup2(2, 1)
    module = sys.argv[1]
    try:
        start_inherited_logging()
        return import_module(module).run_process(status)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        logging.getLogger(module).debug("the process fails", exc_info=True)
        report_failure(status, error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
