"""Kernel launches that take the host little time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Launcher:
    """A kernel whose machine code is looked up by a key. Inspecting each argument anew would take the host longer than
    the rest of a launch. options: those of the compilation."""

    def __init__(self, kernel: Any, **options: Any) -> None:
        self.kernel, self.options = kernel, options
        self.made: dict[tuple[Hashable, ...], Any] = {}

    def launch(self, grid: tuple[int, int], key: tuple[Hashable, ...], *args: Any) -> None:
        """Launch the kernel. key: every property of the arguments that the machine code depends on and that may
        differ."""
        if (made := self.made.get(key)) is not None:
            made[*grid, 1](*args)
        else:  # Triton's interpreter compiles nothing and returns None
            self.made[key] = self.kernel[grid](*args, **self.options)


def special(number: int) -> int:
    """Return the property of a number or an address that Triton specialises on: that it is 1, or a multiple of 16."""
    return 1 if number == 1 else number % 16 == 0 and 16
