"""The laws, family by family, in the order in which they are tested."""

from __future__ import annotations

from importlib import import_module

from tailrace_conform.law import Law

FAMILIES = ("streams", "stops", "logprobs", "knobs", "seeds", "structure", "errors")

LAST = "streams.gone-client"


def all_laws() -> list[Law]:
    """Every law, in order. A family's package has NAMES: its files, each of which has LAW. LAST comes last: a
    server that keeps places for clients that have left is busy afterwards."""
    found = []
    for family in FAMILIES:
        package = f"{__name__}.{family}"
        found += [import_module(f"{package}.{name}").LAW for name in import_module(package).NAMES]
    return sorted(found, key=lambda law: law.id == LAST)
