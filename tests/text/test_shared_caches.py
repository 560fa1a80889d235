"""What is kept between requests of different users in the text package changes no result, whatever the other requests
were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.harness import make_tokenizer
from tailrace.params import SamplingParams
from tailrace.text.stop_regex import compile_patterns
from tailrace.text.stop_strings import AhoCorasick, PatternSearch, StringSearch, compile_strings
from tailrace.text.tokenizer import Tokenizer

STOPS = ("ab", "bca", "é")
TEXT = st.text("abcé ", max_size=20)


def found(search: StringSearch | PatternSearch, texts: list[str]) -> list[object]:
    """What a search returns for the texts of tokens, up to the first match."""
    results: list[object] = []
    for text in texts:
        results.append((search.passes(text), result := search.feed(text)))
        if result[1] is not None:
            break
    return [*results, search.flush()]


@given(st.lists(TEXT, max_size=8), st.lists(st.lists(TEXT, max_size=8), max_size=3))
def test_a_cached_automaton_finds_what_a_new_one_finds(texts: list[str], others: list[list[str]]):
    compile_strings.cache_clear()
    new = found(StringSearch(STOPS), texts)
    running = StringSearch(STOPS)
    for other in others:
        found(StringSearch(STOPS), other)
        running.feed("".join(other))  # of a request that goes on
    assert found(StringSearch(STOPS), texts) == new


@given(st.lists(TEXT, max_size=8), st.lists(st.lists(TEXT, max_size=8), max_size=3))
def test_cached_patterns_find_what_new_ones_find(texts: list[str], others: list[list[str]]):
    compile_patterns.cache_clear()
    params = SamplingParams(stop=("ab",), stop_regex=("b+c", "é.a"))
    new = found(PatternSearch(params), texts)
    running = PatternSearch(params)
    for other in others:
        found(PatternSearch(params), other)
        running.feed("".join(other))
    assert found(PatternSearch(params), texts) == new


def test_at_most_sixteen_lists_are_kept():
    for number in range(40):
        StringSearch((f"stop {number}",))
    assert compile_strings.cache_info().currsize == 16
    assert isinstance(compile_strings(("stop 39",)), AhoCorasick)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> tuple[Tokenizer, Tokenizer]:
    folder = tmp_path_factory.mktemp("bytes")
    return make_tokenizer(folder), Tokenizer.load(folder)


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=5))
def test_other_texts_change_no_tokens(tokenizers: tuple[Tokenizer, Tokenizer], text: str, others: list[str]):
    fresh, used = tokenizers
    for other in others:
        used.encode(other, add_special_tokens=False)
    assert used.encode(text, add_special_tokens=False) == fresh.encode(text, add_special_tokens=False)
    assert used.ids_with(("a",)) == fresh.ids_with(("a",))
