"""Numbers in the form of sentences: with as many digits as are informative, and never rounded to a special value: 99.97
% does not become 100 %."""

from __future__ import annotations

import math
from typing import Any


def format_percent(p: float) -> str:
    """Return a share in percent, with three significant digits, or more near the whole."""
    return f"{format_digits(100.0 * p)} %" if p < 0.9995 or p >= 1.0 else f"{below_one(p, 100)} %"


def format_probability(p: float) -> str:
    """Return a probability, with three significant digits, or more near 1."""
    return format_digits(p) if p < 0.9995 else "1" if p >= 1.0 else below_one(p, 1)


def below_one(p: float, whole: int) -> str:
    """Return the share of the whole with so many digits that it is not rounded up to the whole."""
    digits = min(15, math.ceil(-math.log10(1.0 - p)))
    shown = f"{math.floor(p * 10**digits) / 10**digits * whole:.{digits if whole == 1 else digits - 2}f}"
    return shown.rstrip("0")


def format_digits(value: float, digits: int = 3) -> str:
    """Return a number with this many significant digits; whole digits are never dropped."""
    value += 0.0  # −0 is 0
    if value in (0.0, 100.0):
        return f"{value:.0f}"
    if 1e-4 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}".replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")


def format_value(value: Any) -> str:
    """Return a field's value as the request gave it."""
    return f"{value:g}".replace("-", "−") if isinstance(value, float) else str(value)


def format_count(count: int, noun: str = "token") -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_frequency(p: float) -> str:
    """Return how often a token of this probability is drawn."""
    if p >= 0.995:
        return "in every seed" if p >= 1.0 else "in more than 99 of 100 seeds"
    return f"in {round(100 * p)} of 100 seeds" if p >= 0.095 else f"in 1 of {round(1 / p):,} seeds" if p else "never"
