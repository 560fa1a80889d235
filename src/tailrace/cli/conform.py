"""`tailrace conform URL`: the command of the distribution tailrace-conform, if it is installed."""

from __future__ import annotations

import argparse

from tailrace.base.extras import require_extra
from tailrace.errors import ConfigError

with require_extra("conform"):
    from tailrace_conform import cli
    from tailrace_conform.errors import ConformError

add_arguments = cli.add_arguments


def run(args: argparse.Namespace) -> int:
    """Judge the server; return the exit code. Misuse raises ConfigError, as in the other commands."""
    try:
        return cli.run(args)
    except ConformError as error:
        raise ConfigError(str(error)) from None
