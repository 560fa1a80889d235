"""Launches that take the host little time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Launcher:
    """A kernel whose machine code is found again by what it depends on: to look at each argument anew takes the host
    longer than all else that a launch needs. options: how it is compiled."""

    def __init__(self, kernel: Any, **options: Any) -> None:
        self.kernel, self.options = kernel, options
        self.made: dict[tuple[Hashable, ...], Any] = {}

    def launch(self, grid: tuple[int, int], key: tuple[Hashable, ...], *args: Any) -> None:
        """key: whatever of the arguments its code depends on and may differ."""
        if (made := self.made.get(key)) is not None:
            made[*grid, 1](*args)
        else:  # nothing is made in Triton's interpreter
            self.made[key] = self.kernel[grid](*args, **self.options)


def special(number: int) -> int:
    """What of a number, or of an address, Triton compiles anew for: that it is 1, or a multiple of 16."""
    return 1 if number == 1 else number % 16 == 0 and 16
