"""A stop is found where a plain search finds it, and only what may still become a stop is held back."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.text.stop_strings import StringSearch

TEXT = st.text(alphabet="ab😀é", max_size=30)
STOPS = st.lists(st.text(alphabet="ab😀é", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def plain_search(text: str, stops: tuple[str, ...]) -> tuple[str, str] | None:
    """(text before the stop, stop): the earliest end, and of those the longest."""
    found = [(text.index(s) + len(s), -len(s), s) for s in stops if s in text]
    if not found:
        return None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def run(text: str, stops: tuple[str, ...], cuts: list[int]) -> tuple[str, str | None]:
    matcher, out = StringSearch(stops), ""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        safe, match = matcher.feed(text[start:end])
        out += safe
        if match:
            return out, match.stop
    return out + matcher.flush(), None


@settings(max_examples=examples(500), deadline=None)
@given(TEXT, STOPS, st.lists(st.integers(0, 30), max_size=8))
@example("aab", ("ab", "aab"), [1, 2])
@example("ab", ("b", "ab"), [])
@example("ababa", ("abaa", "bab"), [2])
def test_position_is_that_of_a_plain_search(text, stops, cuts):
    expected = plain_search(text, stops)
    assert run(text, stops, cuts) == (expected if expected else (text, None))


@settings(max_examples=examples(500), deadline=None)
@given(TEXT, STOPS)
def test_held_back_is_exactly_what_may_still_become_a_stop(text, stops):
    matcher, out = StringSearch(stops), ""
    for count, char in enumerate(text, 1):
        safe, match = matcher.feed(char)
        out += safe
        if match:
            return
        seen = text[:count]
        longest = max(
            (n for stop in stops for n in range(1, len(stop)) if seen.endswith(stop[:n])),
            default=0,
        )
        assert out == seen[: len(seen) - longest]


@settings(max_examples=examples(300), deadline=None)
@given(TEXT, TEXT, STOPS)
def test_unarmed_text_does_not_stop_but_may_begin_a_stop(before, after, stops):
    matcher = StringSearch(stops)
    out, match = matcher.feed(before, armed=False)
    assert match is None
    more, match = matcher.feed(after)
    whole = before + after
    ends = [
        (start + len(stop), -len(stop), stop)
        for stop in stops
        for start in range(len(whole))
        if whole.startswith(stop, start) and start + len(stop) > len(before)
    ]
    if ends:
        end, _, stop = min(ends)
        assert (out + more, match.stop if match else None) == (whole[: end - len(stop)], stop)
    else:
        assert match is None
        assert out + more + matcher.flush() == whole


class FixedWidth:
    """The planted fault of servers that always hold max(len) − 1 characters and cut at the first stop of the list."""

    def __init__(self, stops):
        self.stops, self.text, self.out = stops, "", 0

    def feed(self, text):
        self.text += text
        for stop in self.stops:
            if stop in self.text:
                return self.text[self.out : self.text.index(stop)], stop
        cut = max(self.out, len(self.text) - max(map(len, self.stops)) + 1)
        safe, self.out = self.text[self.out : cut], cut
        return safe, None


def test_planted_faults_are_seen():
    stops = ("c", "ab")
    assert FixedWidth(stops).feed("xxabc") == ("xxab", "c")
    assert plain_search("xxabc", stops) == ("xx", "ab")  # where the law test would have failed
    assert FixedWidth(("abcdef",)).feed("xyz") == ("", None)
    assert StringSearch(("abcdef",)).feed("xyz") == ("xyz", None)


def test_case_19_held_text_is_flushed_and_never_leaks():
    matcher = StringSearch(("<|im_end|>", "STOP"))
    assert matcher.feed("answer <|im_") == ("answer ", None)
    assert matcher.flush() == "<|im_"
    matcher = StringSearch(("<|im_end|>",))
    assert matcher.feed("answer <|im_")[0] + matcher.feed("end|> leaked")[0] == "answer "
    emoji = StringSearch(("😀!",))
    assert [emoji.feed("a😀"), emoji.feed("😀"), emoji.feed("!")][-1][1].stop == "😀!"


def test_no_stops_hold_nothing():
    matcher = StringSearch(())
    assert matcher.feed("anything") == ("anything", None)
    assert matcher.flush() == ""
