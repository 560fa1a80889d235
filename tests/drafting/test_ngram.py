"""What n-grams guess is what a search of the whole text finds, whatever happened to the text before."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.drafting.base import Drafter, DraftRequest
from tailrace.drafting.ngram import BITE, CANDIDATES, REACH, NGram
from tailrace.drafting.prefix import RECENT
from tailrace.errors import ConfigError


def searched(tokens: list[int], count: int, max_size: int = 4, min_size: int = 2, per_match: float = 1.0) -> list[int]:
    """By the definition."""
    end = len(tokens)

    def agreed(place: int) -> int:
        n = 0
        while n < min(place, REACH) and tokens[place - 1 - n] == tokens[end - 1 - n]:
            n += 1
        return n

    for size in range(max_size, min_size - 1, -1):
        places = [p for p in range(end - 1, size - 1, -1) if tokens[p - size : p] == tokens[end - size :]][:CANDIDATES]
        if places:
            best = max(places, key=agreed)  # the first of equals is the latest
            period = end - best
            count = min(count, max(1, int(agreed(best) * per_match)))
            return [tokens[best + i % period] for i in range(count)]
    return []


def guess(drafter: NGram, tokens: list[int], count: int = 8, slot: int = 0) -> list[int]:
    return drafter.draft([DraftRequest(slot, tokens, count)])[0].tokens


TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@settings(max_examples=examples(300), deadline=None)
@given(TEXTS, st.integers(1, 12), st.integers(1, 5), st.integers(0, 4), st.sampled_from([0.5, 1.0, 3.0]))
@example([1, 2, 3, 1, 2, 3, 1, 2], 8, 2, 2, 3.0)
@example([0] * 60, 12, 1, 4, 1.0)
def test_by_the_definition(tokens, count, min_size, more, per_match):
    sizes = {"max_size": min_size + more, "min_size": min_size, "per_match": per_match}
    assert guess(NGram(**sizes), tokens, count) == searched(tokens, count, **sizes)


CHANGES = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 3), max_size=12)),
    st.tuples(st.just("cut"), st.lists(st.integers(0, 3), max_size=12), st.integers(0, 15)),
    st.tuples(st.just("new"), TEXTS),
)


@settings(max_examples=examples(150), deadline=None)
@given(TEXTS, st.lists(CHANGES, max_size=12))
@example([0, 1, 2, 0, 1], [("cut", [3, 1], 2)])  # as long as before, but another text
def test_a_text_may_be_cut_back_go_on_and_leave(tokens, changes):
    drafter = NGram()
    guess(drafter, tokens)
    for change in changes:
        if change[0] == "new":
            drafter.remove(0)
            tokens = list(change[1])
        else:
            keep = len(tokens) if change[0] == "add" else max(1, len(tokens) - change[2])
            tokens = tokens[:keep] + change[1]
        assert guess(drafter, tokens) == searched(tokens, 8)


def test_a_cut_is_seen_far_beyond_what_is_looked_at_each_time():
    rng = random.Random(1)
    tokens = [rng.randrange(5) for _ in range(RECENT * 2)]
    drafter = NGram()
    guess(drafter, tokens)
    tokens = [*tokens[: RECENT // 2], *(rng.randrange(5) for _ in range(RECENT * 2))]
    assert guess(drafter, tokens) == searched(tokens, 8)


def test_a_slot_changes_owner_even_if_nobody_says_so():
    drafter = NGram()
    guess(drafter, [1, 2, 3, 1, 2])
    assert guess(drafter, [7, 8, 9, 7, 8, 4, 7, 8]) == searched([7, 8, 9, 7, 8, 4, 7, 8], 8)


def test_slots_are_apart():
    drafter = NGram()
    asks = [DraftRequest(0, [1, 2, 3, 1, 2], 1), DraftRequest(5, [1, 2, 4, 1, 2], 1), DraftRequest(2, [1, 2], 1)]
    assert [draft.tokens for draft in drafter.draft(asks)] == [[3], [4], []]
    drafter.remove(5)
    drafter.remove(77)
    assert guess(drafter, [1, 2], slot=5) == []


def test_the_occurrence_whose_longer_context_agrees_wins_over_a_later_one():
    tokens = [9, 8, 1, 2, 3, 4, 50, 7, 7, 1, 2, 3, 4, 60, 9, 8, 1, 2, 3, 4]
    assert guess(NGram(), tokens, 1) == [50]
    assert guess(NGram(), tokens[2:], 1) == [60], "and of equals the latest"


def test_a_repeated_pattern_is_repeated():
    assert guess(NGram(), [1, 2, 3] * 5, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_what_agrees_over_little_vouches_for_little():
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    assert guess(NGram(), tokens) == [3, 4]
    assert guess(NGram(per_match=2.0), tokens) == [3, 4, 5, 6]


def test_the_text_is_not_changed_and_it_is_a_drafter():
    tokens = [1, 2, 3, 1, 2]
    drafter = NGram()
    drafted = guess(drafter, tokens)
    drafted.append(99)
    assert tokens == [1, 2, 3, 1, 2]
    assert isinstance(drafter, Drafter)
    assert drafter.captures == ()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_size": 2, "min_size": 3}, "min_size=3"),
        ({"min_size": 0}, "min_size=0"),
        ({"max_size": 33}, "max_size=33"),
        ({"per_match": 0.0}, "per_match"),
        ({"per_match": float("nan")}, "per_match"),
    ],
)
def test_out_of_range(fields, name):
    with pytest.raises(ConfigError, match=name):
        NGram(**fields)


def test_a_long_prompt_is_indexed_in_bites():
    tokens = [i % 5000 for i in range(3 * BITE)]
    drafter = NGram()
    found = [drafter.draft([DraftRequest(0, tokens, 3)])[0].tokens for _ in range(4)]
    assert found[:2] == [[], []]
    assert found[2] == found[3] == [(tokens[-1] + i) % 5000 for i in (1, 2, 3)]
