"""Limits of one rendering of a template. A template is a program in a model's folder, which nobody has reviewed.

A loop costs its number of items, and each call costs CALL. Values are measured where they can grow: at operators, and
where they get a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

MAX_STEPS = 20_000_000  # A few seconds. It allows 4000 messages and a loop over all of them at each.
CALL = 100  # Steps of a macro's call, in turns of a loop.
MAX_LENGTH = 1 << 26  # Characters of a text, or items of a list.
MAX_BITS = 1 << 16  # Bits of a whole number.
WIDTH = re.compile(r"\*|\d{7,}")  # In a format: a width from the arguments, or of a million and more.


class TemplateLimitError(Exception):
    """A template exceeds the limits of a rendering."""


class Budget:
    """The steps that one rendering has used."""

    def __init__(self) -> None:
        self.steps = 0

    def spend(self, steps: int) -> None:
        """Count steps.

        Raises:
            TemplateLimitError: the rendering has used too many.
        """
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise TemplateLimitError(f"it takes more than {MAX_STEPS} steps")

    def count_items(self, items: Any) -> Any:
        """Return a loop's items, counted: at once if their number is known, else item by item."""
        if hasattr(items, "__len__"):
            self.spend(len(items))
            return items
        return self._count_each(items)

    def _count_each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            yield item


def check_value_length(value: Any) -> Any:
    """Return the value.

    Raises:
        TemplateLimitError: a text or a list is too long.
    """
    if isinstance(value, str | list | tuple) and len(value) > MAX_LENGTH:
        raise TemplateLimitError(f"it makes a value of more than {MAX_LENGTH} characters or items")
    return value


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation that would take too much time or memory.

    Raises:
        TemplateLimitError: the result would be too large.
    """
    sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
    numbers = [value for value in (left, right) if isinstance(value, int)]
    large = False
    if operator == "+" and len(sizes) == 2:
        large = sum(sizes) > MAX_LENGTH
    elif operator == "*" and sizes and numbers:
        large = sizes[0] * numbers[0] > MAX_LENGTH
    elif operator == "*" and len(numbers) == 2:
        large = left.bit_length() + right.bit_length() > MAX_BITS
    elif operator == "**" and len(numbers) == 2:
        large = left.bit_length() * abs(right) > MAX_BITS
    elif operator == "%" and isinstance(left, str):
        large = WIDTH.search(left) is not None
    if large:
        raise TemplateLimitError(f"the result of its operator {operator} would be too large")
