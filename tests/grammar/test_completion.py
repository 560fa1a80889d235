"""Completing a text within a budget, from every state of random texts, and only with what the grammar allows."""

from __future__ import annotations

import json

import numpy
import pytest

from grammar.test_matcher import WORDS, cases, compiled, ids_of, mask_of, start, text_of
from grammar.vocabularies import EOS, small
from tailrace.grammar import completion as completion_module
from tailrace.grammar.completion import TEXTS_PER_MASK, shortest_completion
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.grammar.matcher import GrammarMatcher
from tailrace.request.options import Grammar


def follow(matcher: GrammarMatcher, tokens: list[int]) -> None:
    assert all(matcher.accept(token) for token in tokens)
    assert matcher.accept(EOS[0])


@pytest.mark.few(2)
@cases
def test_every_place_of_a_random_text_is_closed(name: str):
    tried = closed = 0
    for seed in range(3):
        rng, matcher, path = numpy.random.default_rng(seed), start(name), []
        for _ in range(15):
            mask = mask_of(matcher)
            tokens = shortest_completion(matcher, 60)
            tried += 1
            if tokens is not None:
                closed += 1
                assert len(tokens) <= 60
                assert tokens == shortest_completion(matcher.fork(), 60)
                assert mask_of(matcher).equal(mask)
                follow(matcher.fork(), tokens)
                assert WORDS[name][1](text_of([*path, *tokens]))
            token = int(rng.choice(ids_of(mask)))
            if token in EOS:
                break
            matcher.accept(token)
            path.append(token)
    # a language of brackets that were opened one by one may need more tokens than there are
    assert closed >= 0.97 * tried, f"{closed} of {tried}"


def test_the_budget_is_kept():
    grammar = Grammar(kind="regex", source="[a-c]{9}x?")
    matcher = GrammarCompiler(small()).load(GrammarCompiler(small()).compile(grammar)).matcher()
    assert matcher.accept(ord("a"))
    shortest = next(n for n in range(10) if shortest_completion(matcher, n) is not None)
    assert shortest == 3  # "abc" is a token, so eight letters are at least three
    assert shortest_completion(matcher, 0) is None
    assert shortest_completion(matcher, 10, max_masks=1) is None
    for token in shortest_completion(matcher, 10) or []:
        assert matcher.accept(token)
    assert shortest_completion(matcher, 0) == []


def test_texts_that_are_tried_count_as_work(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a search in a schema of many patterns tries some 150 texts per mask."""
    names = [f"k{i}" for i in range(30)]
    pattern = {"type": "string", "pattern": "^[a-z]{5}[0-9]{7}q$"}
    source = json.dumps({"type": "object", "properties": dict.fromkeys(names, pattern), "required": names})
    library = GrammarCompiler(small())
    matcher = library.load(library.compile(Grammar(kind="json_schema", source=source))).matcher()
    tried, plain = [0], completion_module.is_completion

    def counted(place: GrammarMatcher, tokens: list[int]) -> bool:
        tried[0] += 1
        return plain(place, tokens)

    monkeypatch.setattr(completion_module, "is_completion", counted)
    shortest_completion(matcher, 1000, max_masks=20)
    assert 0 < tried[0] <= 20 * TEXTS_PER_MASK


def test_the_end_is_closed():
    matcher = compiled("object").matcher()
    assert matcher.prefix([*b"{}", EOS[1]]) == 3
    assert all(matcher.accept(token) for token in [*b"{}", EOS[1]])
    assert shortest_completion(matcher, 5) == []
