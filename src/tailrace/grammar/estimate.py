"""An estimate of a grammar's compile time from its text alone. It orders the grammars of one user, and nothing else
depends on it."""

from __future__ import annotations

import re

from tailrace.request.options import Grammar

SCANNED = 1 << 16  # Characters in which bounds are searched. The rest counts by its length.
# {3}, {3,9} and {3,} of regexes and GBNF, and the bounds of schemas.
BOUNDS = re.compile(r'\{(\d{1,9})(?:,(\d{0,9}))?\}|"m(?:ax|in)(?:Items|Length|Properties)"\s{0,8}:\s{0,8}(\d{1,9})')
BRANCHES = re.compile(r'"(?:anyOf|oneOf|allOf|\$ref|pattern|patternProperties)"')
BRANCH = 100  # A part that the compiler may visit several times costs as much as this many characters.


def estimate_cost(grammar: Grammar) -> int:
    """Return a number that grows with the time that the grammar most likely takes."""
    head = grammar.source[:SCANNED]
    bounds = sum(max(int(number or 0) for number in found) for found in BOUNDS.findall(head))
    return len(grammar.source) + bounds + BRANCH * len(BRANCHES.findall(head))
