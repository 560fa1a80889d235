"""Suggestions for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the known name nearest to `name`; "" if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
