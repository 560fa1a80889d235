"""Suggestions for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.6  # the least likeness of a suggested name, between 0 and 1


def find_nearest(name: str, known: Iterable[str], cutoff: float = CUTOFF) -> str:
    """Return the known name nearest to `name`; "" if none is near. Capitals and signs such as "_" do not count."""
    folded: dict[str, str] = {}
    for one in known:
        folded.setdefault(fold_name(one), one)
    near = difflib.get_close_matches(fold_name(name), folded, n=1, cutoff=cutoff)
    return folded[near[0]] if near else ""


def fold_name(name: str) -> str:
    """Return the name's letters and digits in lower case."""
    return "".join(filter(str.isalnum, name.lower()))


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the known name nearest to `name`; "" if none is near."""
    near = find_nearest(name, known)
    return f" (did you mean {near}?)" if near else ""
