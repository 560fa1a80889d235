"""The search for forced tokens is bounded by what is asked for, however much text a grammar forces."""

from __future__ import annotations

import json
import math

import pytest
import torch

from grammar.vocabularies import small
from tailrace.grammar.jump_forward import MAX_BYTES_CHECKED, certain_prefix, forced_text
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.grammar.matcher import GrammarMatcher
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar

DOUBLING = "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(40))
LONG = {
    "pattern": Grammar(kind="regex", source="a{10000000}"),
    "doubling": Grammar(kind="ebnf", source=f'root ::= a0\n{DOUBLING}\na40 ::= "x"'),
    "behind a choice": Grammar(kind="ebnf", source=f'root ::= "q" | a0\n{DOUBLING}\na40 ::= "xabc"'),
    "array": Grammar(
        kind="json_schema",
        whitespace=0,
        source=json.dumps({"type": "array", "items": {"const": "h" * 50}, "minItems": 1000, "maxItems": 1000}),
    ),
}


def begun(grammar: Grammar) -> GrammarMatcher:
    library = GrammarCompiler(small())
    matcher = library.load(library.compile(grammar)).matcher()
    assert isinstance(matcher, GrammarMatcher)
    return matcher


@pytest.mark.parametrize("name", LONG)
def test_no_more_is_looked_at_than_asked_for(name: str, monkeypatch: pytest.MonkeyPatch):
    cut, texts = Vocabulary.cut, []
    monkeypatch.setattr(Vocabulary, "cut", lambda self, text: texts.append(text) or cut(self, text))
    place = begun(LONG[name])
    if name == "behind a choice":
        assert place.accept(ord("x"))
    for _ in range(3):
        tokens = place.forced(8, 9.0)
        assert 0 < len(tokens) <= 8
        assert place.prefix(tokens) == len(tokens)
        assert all(map(place.accept, tokens))
    longest = max(map(len, small().token_bytes))
    assert max(map(len, texts)) <= 9 * longest


def test_time_ends_a_look():
    assert forced_text(begun(LONG["doubling"]), 1000, 9.0) == (b"x" * 1001, True)
    text, goes_on = forced_text(begun(LONG["doubling"]), 1000, 0.0)
    assert len(text) <= 1
    assert goes_on


def test_the_last_token_is_not_looked_at_longer():
    """A vocabulary may have a token of 128 blanks: a mask for each of them."""
    mask = torch.zeros(small().words, dtype=torch.int32)
    assert certain_prefix(begun(LONG["pattern"]), b"a" * 128, mask, math.inf) == (b"a" * MAX_BYTES_CHECKED, True)
    assert certain_prefix(begun(LONG["pattern"]), b"aaa", mask, 0.0) == (b"", True)
    assert certain_prefix(begun(LONG["pattern"]), b"aaa", mask, math.inf) == (b"aaa", False)


def test_a_text_that_goes_two_ways_is_seen_up_to_there():
    assert forced_text(begun(Grammar(kind="regex", source="xab[cd]")), 32, 9.0) == (
        b"xab",
        False,
    )  # abc is a token, abd is none
    assert forced_text(begun(Grammar(kind="regex", source="xabcd")), 32, 9.0) == (b"xabcd", False)
    assert forced_text(begun(Grammar(kind="regex", source="x(ab)?")), 32, 9.0) == (b"x", False)
    assert forced_text(begun(Grammar(kind="regex", source="[ae]x")), 32, 9.0) == (b"", False)
