"""A bucket that refills steadily within a minute. This module does no I/O and reads no clock.

The arithmetic is in integers, so no order of steps changes a result: a unit is a sixty-millionth of what is limited,
and a limit of n per minute gives back n units per microsecond.
"""

from __future__ import annotations

from typing import NamedTuple

UNIT = 60_000_000  # microseconds of a minute


class Bucket(NamedTuple):
    """What a user has used of a limit.

    limit: per minute; 0: no limit. used: in units; more than the limit if more was used than was known before.
    """

    limit: int
    used: int = 0

    def refill(self, elapsed_us: int) -> Bucket:
        """Return the bucket after this time."""
        return self._replace(used=max(0, self.used - self.limit * max(0, elapsed_us)))

    def take(self, amount: int) -> Bucket:
        """Return the bucket with so much more used. A negative amount gives back, at most what is used."""
        return self._replace(used=max(0, self.used + amount * UNIT)) if self.limit else self

    def wait_us(self, amount: int) -> int:
        """Return the microseconds until the bucket has so much; 0: it has. The amount must not exceed the limit."""
        return divide_up(max(0, self.used - (self.limit - amount) * UNIT), self.limit) if self.limit else 0

    @property
    def remaining(self) -> int:
        """What can be used now."""
        return max(0, (self.limit * UNIT - self.used) // UNIT)

    @property
    def reset_us(self) -> int:
        """Microseconds until the bucket is full."""
        return divide_up(self.used, self.limit) if self.limit else 0


def divide_up(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)
