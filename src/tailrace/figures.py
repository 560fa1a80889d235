"""Numbers as sentences show them: with as many digits as tell something, and never rounded to what they are not:
99.97 % does not become 100 %."""

from __future__ import annotations

import math
from typing import Any


def percent(p: float) -> str:
    """A share, with three digits that count, or more near the whole."""
    return f"{significant(100.0 * p)} %" if p < 0.9995 or p >= 1.0 else f"{below_one(p, 100)} %"


def chance(p: float) -> str:
    """The same, of 1."""
    return significant(p) if p < 0.9995 else "1" if p >= 1.0 else below_one(p, 1)


def below_one(p: float, whole: int) -> str:
    """So many digits that the share of the whole is not rounded up to it."""
    digits = min(15, math.ceil(-math.log10(1.0 - p)))
    shown = f"{math.floor(p * 10**digits) / 10**digits * whole:.{digits if whole == 1 else digits - 2}f}"
    return shown.rstrip("0")


def significant(value: float, digits: int = 3) -> str:
    """So many digits that count; none of a whole number is lost."""
    value += 0.0  # −0 is 0
    if value in (0.0, 100.0):
        return f"{value:.0f}"
    if 1e-4 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}".replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")


def given(value: Any) -> str:
    """A field's value, as it was asked for."""
    return f"{value:g}".replace("-", "−") if isinstance(value, float) else str(value)


def many(count: int, noun: str = "token") -> str:
    """A count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def seeds(p: float) -> str:
    """How often a probability comes."""
    if p >= 0.995:
        return "in every seed" if p >= 1.0 else "in more than 99 of 100 seeds"
    return f"in {round(100 * p)} of 100 seeds" if p >= 0.095 else f"in 1 of {round(1 / p):,} seeds" if p else "never"
