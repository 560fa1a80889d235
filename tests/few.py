"""Few of a test's cases for `make test`, the rest for `make test-long`: `@pytest.mark.few(5)` marks all but five of its
cases as long, `@pytest.mark.few` all but as many as show each value of each parameter once.

Which they are depends on their names alone: the one that brings most values not seen yet, then most pairs of values
not seen yet, is next.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from itertools import combinations

import pytest

Level = tuple[str, int]  # a parameter and which object its value is


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "few(count=None): all but so many of the cases are long (tests/few.py)")


@pytest.hookimpl(tryfirst=True)  # before -m picks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("lf", False) and config.cache.get("cache/lastfailed", {}):
        config.option.markexpr = ""  # what failed runs again, whichever of its test's cases it is
        return
    crowds: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("long"):
            crowds[item.nodeid.partition("[")[0]].append(item)
    for crowd in crowds.values():
        marker = crowd[0].get_closest_marker("few")
        kept = chosen({item.name: levels_of(item) for item in crowd}, *marker.args)
        for item in crowd:
            if item.name not in kept:
                item.add_marker("long")


def levels_of(item: pytest.Item) -> frozenset[Level]:
    """Cases share the objects that they were parametrised with."""
    return frozenset((name, id(value)) for name, value in item.callspec.params.items())


def chosen(cases: dict[str, frozenset[Level]], count: int | None = None) -> list[str]:
    """The names of the cases that are kept."""
    order = sorted(cases, key=lambda name: zlib.crc32(name.encode()))
    pairs = {name: frozenset(combinations(sorted(levels), 2)) for name, levels in cases.items()}
    new, new_pairs = set[Level]().union(*cases.values()), set[tuple[Level, ...]]().union(*pairs.values())
    kept: list[str] = []
    while order and (new if count is None else len(kept) < count):
        best = max(order, key=lambda name: (len(cases[name] & new), len(pairs[name] & new_pairs)))
        order.remove(best)
        kept.append(best)
        new -= cases[best]
        new_pairs -= pairs[best]
    return kept
