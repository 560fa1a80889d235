"""The JSON-Schema-Test-Suite: with every accepted schema, invalid instances can't be written and valid ones can. The
others are refused."""

from __future__ import annotations

import pytest

from grammar.suite import ANNOTATION, CASES, TOKEN_BYTES, UNWRITTEN, Verdict, judged
from grammar.vocabularies import small
from tailrace.grammar.llguidance import GrammarCompiler

JUDGED = [case for case in CASES if case["file"] not in ANNOTATION and (case["draft"], case["file"]) not in TOKEN_BYTES]
KINDS = sorted({case["file"] for case in JUDGED})


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[Verdict]]:
    library = GrammarCompiler(small())
    return {kind: [judged(library, case) for case in JUDGED if case["file"] == kind] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_invalid_cannot_be_written(verdicts: dict[str, list[Verdict]], kind: str):
    assert not [verdict for verdict in verdicts[kind] if verdict.wrong]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_valid_can_be_written(verdicts: dict[str, list[Verdict]], kind: str):
    left_out = [text for file, text in UNWRITTEN if file == kind]
    assert not [value for verdict in verdicts[kind] for value in verdict.missing if value not in left_out]


def test_not_more_is_refused_than_before(verdicts: dict[str, list[Verdict]]):
    """Of the suite's schemas. Most of the others need `not`, `if`, `contains`, or what is left unevaluated."""
    taken = [verdict for one in verdicts.values() for verdict in one if not verdict.reason]
    assert len(JUDGED) >= 610
    assert len(taken) >= 345
