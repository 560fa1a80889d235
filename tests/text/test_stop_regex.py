"""Stop regexes: the match that ends first is found under any chunking, and only a possible match is held back."""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import weakref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.request.options import MarkedSpan
from tailrace.text import stop_regex as module
from tailrace.text.stop_regex import Patterns, RegexSearch
from tailrace.text.stop_strings import Match, PatternSearch, StringSearch, stop_search

TEXT = st.text(alphabet="abAB1 \né", max_size=24)
ATOMS = st.sampled_from(
    [
        "a",
        "B",
        "(?-i:B)",
        "(?i:b)",
        "(?a:\\w)",
        "(?s:.)",
        "b",
        "é",
        ".",
        r"\d",
        r"\s",
        "[ab]",
        "[^a]",
        r"\w",
        "(?:ab|b)",
        "(a|bc|)",
        "(?i:A)",
    ]
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?"])
FLAGS = st.sampled_from(["", "", "(?i)", "(?s)", "(?a)"])
EXPRESSIONS = st.tuples(
    FLAGS, st.lists(st.tuples(ATOMS, REPEATS).map("".join), min_size=1, max_size=4).map("".join)
).map("".join)


def brute(text: str, strings: tuple[str, ...], expressions: tuple[str, ...]) -> tuple[str, str] | None:
    """(text before, text of the match), by trying every pair: the earliest end, and of those the earliest beginning."""
    compiled = [re.compile(re.escape(s)) for s in strings] + [re.compile(e) for e in expressions]
    for end in range(1, len(text) + 1):
        for start in range(end):
            if any(pattern.fullmatch(text, start, end) for pattern in compiled):
                return text[:start], text[start:end]
    return None


def run(params: SamplingParams, text: str, cuts: list[int]) -> tuple[str, Match | None]:
    search, out = PatternSearch(params), ""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        safe, match = search.feed(text[start:end])
        out += safe
        if match:
            return out, match
    return out + search.flush(), None


def served(expression: str) -> bool:
    try:
        Patterns((expression,))
    except ParameterError:
        return False
    return True


@settings(max_examples=examples(1500), deadline=None)
@given(
    TEXT,
    EXPRESSIONS.filter(served),
    st.lists(st.text(alphabet="ab1", min_size=1, max_size=3), max_size=2),
    st.lists(st.integers(0, 24), max_size=6),
)
@example("aab", "a+b", [], [1])
@example("ab1b", "a.{0,2}b", ["1b"], [2])
@example("abab", "(?:ab){2}", [], [])
def test_the_earliest_end_is_found(text, expression, strings, cuts):
    expected = brute(text, tuple(strings), (expression,))
    out, match = run(SamplingParams(stop=tuple(strings), stop_regex=(expression,)), text, cuts)
    assert (out, match and match.text) == (expected if expected else (text, None))


@settings(max_examples=examples(150), deadline=None)
@given(TEXT, st.lists(st.tuples(ATOMS, REPEATS).map("".join), min_size=1, max_size=2).map("".join).filter(served))
def test_held_back_is_only_what_may_still_become_one(text, expression):
    """Whatever is held can be completed: some further text makes a match that begins where the held part begins."""
    search = RegexSearch(Patterns((expression,)))
    for count, char in enumerate(text, 1):
        if search.push(char) is not None:
            return
        assert search.held <= count
        if search.held:
            held = text[count - search.held : count]
            more = ("".join(p) for n in range(1, 6) for p in itertools.product("aAbBc1 \né", repeat=n))
            assert any(re.fullmatch(expression, held + rest) for rest in more), (expression, held)


@settings(max_examples=examples(300), deadline=None)
@given(
    TEXT,
    st.lists(st.text(alphabet="ab1é", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 24), max_size=6),
)
def test_strings_alone_are_the_same_as_with_the_automaton(text, stops, cuts):
    search, out, found = StringSearch(tuple(stops)), "", None
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        safe, found = search.feed(text[start:end])
        out += safe
        if found:
            break
    assert run(SamplingParams(stop=tuple(stops)), text, cuts) == (out + ("" if found else search.flush()), found)


def test_a_matcher_that_follows_one_way_only_is_seen(monkeypatch):
    """The planted fault: forget the paths that began earlier."""
    monkeypatch.setattr(RegexSearch, "push", lambda self, char: None)
    with pytest.raises(AssertionError):
        test_the_earliest_end_is_found()


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("(", "can't be read"),
        ("a*", "matches the empty text"),
        ("^a", "at is not supported"),
        (r"a\b", "at is not"),
        ("a$", "at is not"),
        (r"(a)\1", "groupref is not"),
        ("a(?=b)", "assert is not"),
        ("(?<!a)b", "assert not is not"),
        ("a++", "possessive repeat is not"),
        ("(?>a|ab)c", "atomic group is not"),
        ("a{600}", "more than 256"),
        ("(a{0,50}){0,50}b", "more than 256"),
        ("(a?){70}(b?){70}c", "too many ways"),
        ("a{4294967296}", "can't be read"),
    ],
)
def test_what_cannot_be_served_says_so(expression, why):
    with pytest.raises(ParameterError, match=re.escape(why)) as refused:
        Patterns((expression,))
    assert refused.value.param == "stop_regex"


def test_deep_nesting_is_read_or_refused():
    with contextlib.suppress(ParameterError):
        Patterns(("(" * 5000 + "a" + ")" * 5000,))


@pytest.mark.parametrize(
    ("expression", "text"),
    [("(?i)(?-i:a)", "A"), ("(?i)x(?-i:END)", "xend"), ("(?a:\\d)", "٣"), ("(?a:\\w)", "é"), ("(?s)a(?-s:.)", "a\n")],
)
def test_flags_hold_where_they_stand(expression, text):
    assert re.search(expression, text) is None
    search = RegexSearch(Patterns((expression,)))
    assert all(search.push(char) is None for char in text)


@pytest.mark.parametrize(
    "expression",
    [
        "(){4000000000}a",
        "(?:){4000000000}a",
        "(a{0}){4000000000}b",
        "(){0,4000000000}a",
        "((((){65535}){65535})){65535}a",
        "(?:a??){2000000}b",
        "(?i)[\x00-\uffff]{250}",
        "(?a)(?u)x",
        "[[a]]",
        "[a--b]",
    ],
)
def test_hostile_patterns_are_read_or_refused_at_once(expression):
    """Each of these once took seconds, or for ever, or raised another error."""
    with contextlib.suppress(ParameterError):
        assert len(Patterns((expression,)).passes) <= module.MAX_POSITIONS


def test_what_is_not_used_any_more_is_forgotten():
    kept = weakref.WeakSet()
    for i in range(100):
        found = module.compile_request_patterns("stop_regex", (f"x{i}y",))
        RegexSearch(found).push("x")
        kept.add(found)
        del found
    gc.collect()
    assert len(kept) <= 16


def test_strings_beside_patterns_cost_what_strings_cost():
    """However their beginnings overlap, one state stands for all of them."""
    stops = tuple("a" * 60 + chr(0x4E00 + i) for i in range(120))
    search = PatternSearch(SamplingParams(stop=stops, stop_regex=("zz",)))
    assert search.feed("a" * 1000) == ("a" * 940, None)
    assert len(search._search.begun) == 0


def test_the_work_per_character_is_bounded():
    """Patterns that make a backtracking engine explode."""
    compiled = Patterns(("(a|a)+(a|a)+(a|a)+b",))
    search = RegexSearch(compiled)
    for _ in range(2000):
        assert search.push("a") is None
        assert len(search.begun) <= len(compiled.passes)
    assert search.push("b") == (2001, "(a|a)+(a|a)+(a|a)+b")


def test_strings_of_any_length_beside_patterns():
    long = "x" * 1000
    assert run(SamplingParams(stop=(long,), stop_regex=("y",)), "ab" + long, [500]) == ("ab", Match(long, long))
    assert module.MAX_POSITIONS < 1000


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from(["<t>", "</t>", "stop", "st", "op", "<", "a"]), max_size=10).map("".join),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_stretches_are_left_out(text, opened, cuts):
    """The oracle: cut the text at the markers by hand and search the pieces outside."""
    params = SamplingParams(stop=("stop",), stop_outside=(MarkedSpan("<t>", "</t>", opened),))
    at, inside, expected = 0, opened, None
    while expected is None:
        end = text.find("</t>" if inside else "<t>", at)
        piece = text[at : end if end >= 0 else len(text)]
        if not inside and "stop" in piece:
            expected = text[: at + piece.index("stop")]
        elif end < 0:
            break
        at, inside = end + (4 if inside else 3), not inside
    out, match = run(params, text, cuts)
    assert (out, match is not None) == ((expected, True) if expected is not None else (text, False))


@pytest.mark.parametrize(
    ("text", "opened", "found"),
    [
        ("<t>stop</t>a<t>stop", False, "<t>stop</t>a<t>"),  # behind the thought the marker is text
        ("stop<c>stop</c>stop", True, "stop<c>stop</c>"),  # a call has ended the thought
        ("a<c>stop</t>bstop", True, "a<c>stop</t>b"),  # the thought has only named the call's marker
        ("<c>stop</c>stop", False, "<c>stop</c>"),
        ("a</t><t>stop", True, "a</t><t>"),
    ],
)
@pytest.mark.parametrize("cuts", [[], [1, 5, 9], list(range(30))])
def test_a_thought_that_a_call_ends_and_that_comes_once(text, opened, found, cuts):
    thought, call = MarkedSpan("<t>", "</t>", opened, once=True, until=("<c>",)), MarkedSpan("<c>", "</c>")
    out, match = run(SamplingParams(stop=("stop",), stop_outside=(thought, call)), text, cuts)
    assert (out, match is not None) == (found, True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<t>a<c>stop</c>stop</t>bstop", "<t>a<c>stop</c>stop</t>b"),  # behind the call the thought goes on
        ("<t><c>x</c><c>y</c>stop</t>stop", "<t><c>x</c><c>y</c>stop</t>"),
        ("<t><c>stop</t>stop", "<t><c>stop</t>"),  # the thought has only named the call's marker
        ("<c>stop</c>stop", "<c>stop</c>"),
        ("<t>stop</t><t>stop</t>stop", "<t>stop</t><t>stop</t>"),
    ],
)
@pytest.mark.parametrize("cuts", [[], [1, 5, 9], list(range(30))])
def test_a_thought_that_goes_on_behind_a_call(text, found, cuts):
    """Apertus."""
    thought, call = MarkedSpan("<t>", "</t>", until=("<c>",), resumes=True), MarkedSpan("<c>", "</c>")
    assert run(SamplingParams(stop=("stop",), stop_outside=(thought, call)), text, cuts) == (
        found,
        Match("stop", "stop"),
    )


def test_nothing_is_searched_where_nothing_is_asked():
    assert isinstance(stop_search(SamplingParams()), StringSearch)
    assert isinstance(stop_search(SamplingParams(stop=("a",))), StringSearch)
    assert isinstance(stop_search(SamplingParams(stop_outside=(MarkedSpan("a", "b"),))), StringSearch)


def test_patterns_are_walked_for_every_sequence_of_a_request():
    assert module.compile_request_patterns("banned_regex", ("a{50}",), 8)
    with pytest.raises(ParameterError, match=r"banned_regex: .* with n = 64 at most 24") as caught:
        module.compile_request_patterns("banned_regex", ("a{50}",), 64)
    assert caught.value.param == "banned_regex"


@pytest.mark.parametrize(
    ("expressions", "every"),
    [
        ((r"\S",), True),
        (("..?",), True),
        (("[a-z]", "[^a-z]"), True),
        ((r"\w", r"\W"), True),
        (("x", "[^x]b?"), True),
        (tuple(f"[^{char}]" for char in "abc"), True),
        (("[^é]",), False),
        (("x", "(?i)[^x]"), False),
        (("..", "x"), False),
        (("[a-z]", "[^a-z][a-z]"), False),
        ((), False),
    ],
)
def test_patterns_may_match_every_character_together(expressions, every):
    assert module.compile_request_patterns("banned_regex", expressions).any_character == every
