"""What hostile clients send, as data: KINDS. Read by tests/faults/test_hostile.py and by `python -m bench.abuse`."""

from __future__ import annotations

from faults.hostile import door, fields, knobs, lives, words
from faults.hostile.client import Kind

AREAS: dict[str, tuple[Kind, ...]] = {
    "HTTP and JSON": door.KINDS,
    "fields and prompts": fields.KINDS,
    "grammars and tools": words.KINDS,
    "sampling": knobs.KINDS,
    "lives": lives.KINDS,
}
KINDS: tuple[Kind, ...] = tuple(kind for kinds in AREAS.values() for kind in kinds)
assert len({kind.name for kind in KINDS}) == len(KINDS)
