"""Matches untrusted regexes in a process of its own, with bounded time: a regex can take for ever, and Python's engine
can't be interrupted.

`match_first` is the parent's side; `python -m tailrace.base.regex_search SECONDS` is the child.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Sequence

from tailrace.base.python_command import make_python_command, select_environment

CPU_S = 5  # processor time
WALL_S = 300.0
MEMORY = 1 << 30  # of address space


class RegexLimitError(Exception):
    """A regex takes too much time or memory.

    Attributes:
        regex: it.
    """

    def __init__(self, regex: str) -> None:
        super().__init__(regex)
        self.regex = regex


def match_first(regexes: Sequence[str], texts: Sequence[str], seconds: int = CPU_S) -> list[int | None]:
    """Return the place of the first regex that matches at the beginning of each text, or None.

    Raises:
        RegexLimitError: a regex takes too much.
    """
    if not regexes or not texts:
        return [None] * len(texts)
    command = make_python_command(__name__, str(seconds))
    asked = json.dumps([list(regexes), list(texts)]).encode()
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, check=False, timeout=WALL_S, env=select_environment()
        )
        lines, ended = done.stdout.split(), done.returncode == 0
    except subprocess.TimeoutExpired as error:
        lines, ended = (error.stdout or b"").split(), False
    if not ended:
        raise RegexLimitError(regexes[max(0, len(lines) - 1)])
    places = [json.loads(line) for line in lines]
    return [next((place for place, found in enumerate(places) if index in found), None) for index in range(len(texts))]


def main(arguments: list[str]) -> None:
    """Print for each regex the places of the texts that it matches, as JSON in a line."""
    seconds = int(arguments[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    regexes, texts = json.load(sys.stdin)
    for regex in regexes:
        print("[", end="", flush=True)  # so the parent knows which regex did not end
        found = [str(place) for place, text in enumerate(texts) if re.match(regex, text)]
        print(",".join(found) + "]", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
