"""Commands whose standard files are closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST_FREE = """
import os, sys
from tailrace.cli import main
try:
    main(["--version"])
except SystemExit:
    pass
print("a word", flush=True)
print("a word", file=sys.stderr, flush=True)
sys.stdin.read()
os._exit(os.open(os.devnull, os.O_RDONLY))
"""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_no_other_file_gets_the_number_of_a_closed_standard_file(closed: str):
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, FIRST_FREE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=300, check=False)
    assert done.returncode == 3
