"""A loop is seen at the very token that completes it, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.engine.checks.repetition import RepetitionCheck
from tailrace.errors import ParameterError
from tailrace.request.options import RepetitionDetection


def circles(tokens: list[int], asked: RepetitionDetection) -> bool:
    """By the definition."""
    for size in range(asked.min_pattern_size, asked.max_pattern_size + 1):
        tail = tokens[-size * asked.min_count :]
        if len(tail) == size * asked.min_count and tail == tail[:size] * asked.min_count:
            return True
    return False


@settings(max_examples=examples(600), deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(2, 4),
    st.integers(0, 12),
)
@example([1, 2, 1, 2, 1, 2], 2, 1, 3, 0)
def test_by_the_definition(tokens, smallest, more, count, min_tokens):
    asked = RepetitionDetection(min_pattern_size=smallest, max_pattern_size=smallest + more, min_count=count)
    watch = RepetitionCheck(asked, min_tokens)
    for end, token in enumerate(tokens, 1):
        assert watch.push(token) == (end > min_tokens and circles(tokens[:end], asked))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_pattern_size": 0, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 513, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 4, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 4, "min_count": 2.0}, "min_count"),
        ({"max_pattern_size": 4, "min_count": True}, "min_count"),
        ({"max_pattern_size": 4, "min_count": 10**40}, "more than 64 bits"),
    ],
)
def test_out_of_range(fields, name):
    with pytest.raises(ParameterError, match=name):
        RepetitionDetection(**fields)
