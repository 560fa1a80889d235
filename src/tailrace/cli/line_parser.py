"""argparse with errors of one line: no usage, and the nearest name for a flag or a word that does not exist."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from tailrace.base.nearest import suggest_name

CHOICE = re.compile(r"invalid choice: '([^']*)'")


class LineParser(argparse.ArgumentParser):
    """A parser whose errors are one line each. Subparsers are LineParsers too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse as argparse does, but refuse unknown flags here, where the known ones are known."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            hints = [suggest_name(word.partition("=")[0], self.list_flags()) for word in rest if word.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(rest)}{''.join(hints)}")
        return found, rest

    def list_flags(self) -> list[str]:
        """Return the flags that the parser knows."""
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Print one line, and exit with 2."""
        if wrong := CHOICE.search(message):
            message += suggest_name(wrong[1], self._list_choices())
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")

    def _list_choices(self) -> Iterable[str]:
        return [str(choice) for action in self._actions for choice in action.choices or ()]
