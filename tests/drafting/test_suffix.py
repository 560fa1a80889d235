"""The automaton knows every substring of every text and how often it came; what is guessed is what a search of all
texts finds."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.drafting import suffix
from tailrace.drafting.base import Drafter, DraftRequest
from tailrace.drafting.suffix import Suffix, find_fair_share
from tailrace.drafting.suffix_automaton import SuffixAutomaton
from tailrace.errors import ConfigError

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=14)
TEXTS = st.lists(TEXT, min_size=1, max_size=4)


def occurrences(texts: list[list[int]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(t[i:j]) for t in texts for i in range(len(t)) for j in range(i + 1, len(t) + 1))


def known(automaton: SuffixAutomaton) -> Counter[tuple[int, ...]]:
    """Every string that can be read from the beginning, and its count."""
    found: Counter[tuple[int, ...]] = Counter()
    todo: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while todo:
        state, string = todo.pop()
        for token, target in automaton.edges[state].items():
            found[(*string, token)] = automaton.count[target]
            todo.append((target, (*string, token)))
    return found


@settings(max_examples=examples(120), deadline=None)
@given(TEXTS, st.randoms(use_true_random=False))
@example([[0, 0, 1], [0, 1, 0, 1], [1, 1, 0, 1]], random.Random(3))
def test_substrings_and_their_counts(texts, rng):
    """Texts grow in turns; where one is cut back and goes on differently, what is gone counts no more."""
    automaton = SuffixAutomaton()
    paths = [[0] for _ in texts]
    goals = [list(text) for text in texts]
    turns = [i for i, text in enumerate(texts) for _ in text]
    rng.shuffle(turns)
    for i in turns:
        paths[i].append(automaton.grow(paths[i][-1], texts[i][len(paths[i]) - 1]))
    assert known(automaton) == occurrences(texts)
    keep = rng.randrange(len(texts[0]))
    while len(paths[0]) > keep + 1:
        automaton.forget(paths[0].pop())
    goals[0] = texts[0][:keep] + [rng.randrange(3) for _ in range(3)]
    for token in goals[0][keep:]:
        paths[0].append(automaton.grow(paths[0][-1], token))
    assert +known(automaton) == occurrences(goals)
    for path, text in zip(paths, goals, strict=True):
        assert [automaton.length[state] for state in path] == list(range(len(text) + 1)), "a text's states stay its own"


@settings(max_examples=examples(120), deadline=None)
@given(TEXTS, TEXT)
def test_following_a_text_finds_its_longest_suffix_that_is_there(texts, text):
    automaton, substrings = SuffixAutomaton(), occurrences(texts)
    for each in texts:
        state = 0
        for token in each:
            state = automaton.grow(state, token)
    at = (0, 0)
    for end, token in enumerate(text, 1):
        at = automaton.step(*at, token)
        longest = max(n for n in range(end + 1) if n == 0 or tuple(text[end - n : end]) in substrings)
        assert at[1] == longest
        state = 0
        for each in text[end - longest : end]:
            state = automaton.edges[state][each]
        assert at[0] == state


def likely(texts: list[list[int]], own: list[int], count: int, min_match: int, guess: list[int]) -> bool:
    """`guess` is a way to follow, from the longest suffix, what came most often."""
    followed: dict[tuple[int, ...], Counter[int]] = {}
    for string, times in occurrences(texts).items():
        followed.setdefault(string[:-1], Counter())[string[-1]] += times

    def matched(string: tuple[int, ...]) -> tuple[int, ...]:
        return next((string[i:] for i in range(len(string)) if string[i:] in followed), ())

    string = matched(tuple(own))
    limit = min(count, max(1, len(string)))
    for token in guess:
        if len(string) < min_match or followed[string][token] < max(followed[string].values()):
            return False
        string = matched((*string, token))
    return len(guess) == limit or (len(guess) < limit and len(string) < min_match)


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), TEXT), min_size=1, max_size=8)


@settings(max_examples=examples(120), deadline=None)
@given(STEPS, st.integers(1, 3), st.integers(1, 6))
def test_guesses_are_what_came_most_often_in_any_text(steps, min_match, count):
    """Sequences in three slots grow, are cut back, and leave; what they said stays."""
    drafter = Suffix(min_match=min_match, min_share=0.0)
    running: dict[int, list[int]] = {}
    finished: list[list[int]] = []
    for slot, cut, more in steps:
        if cut == 3 and slot in running:
            finished.append(running.pop(slot))
            drafter.remove(slot)
        text = running.get(slot, [])
        text = running[slot] = text[: len(text) - cut] + more if cut < 3 else list(more)
        guess = drafter.draft([DraftRequest(slot, text, count)])[0].tokens
        assert likely([*finished, *running.values()], text, count, min_match, guess)


def guess(drafter: Suffix, tokens: list[int], count: int = 8, slot: int = 0) -> list[int]:
    return drafter.draft([DraftRequest(slot, tokens, count)])[0].tokens


def test_nothing_reaches_from_one_text_into_another():
    drafter = Suffix()
    guess(drafter, [1, 2, 3], slot=0)
    guess(drafter, [4, 5, 6], slot=1)
    assert guess(drafter, [9, 1, 2, 3], slot=2) == []
    assert guess(drafter, [9, 1, 2], slot=3) == [3]


def test_what_comes_most_often_wins_and_an_unlikely_guess_is_not_made():
    texts = [[1, 2, 3, 7], [1, 2, 3, 7], [1, 2, 4, 8]]
    for share, expected in ((0.0, [3, 7]), (0.6, [3, 7]), (0.7, [])):
        drafter = Suffix(min_share=share)
        for slot, text in enumerate(texts):
            guess(drafter, text, slot=slot)
        assert guess(drafter, [5, 1, 2], slot=9) == expected


def test_a_repeated_pattern_is_repeated():
    assert guess(Suffix(), [1, 2, 3] * 5, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_two_generations_and_no_more():
    """Memory is bounded; the last generation is still searched, what is older is not."""
    rng, capacity = random.Random(2), 300
    drafter = Suffix(capacity=capacity)
    marked = [1001, 1002, 1003, 1004, 1005]
    guess(drafter, marked, slot=0)
    drafter.remove(0)
    seen = []
    for slot in range(1, 20):
        text = [rng.randrange(1000) for _ in range(100)]
        for end in range(1, 101, 7):  # in pieces, so that a generation ends in the middle of texts
            guess(drafter, text[:end], slot=slot)
        assert drafter.num_states <= 2 * capacity
        seen.append(guess(drafter, [1001, 1002, 1003], slot=100))
        drafter.remove(100)
        if slot % 2:
            drafter.remove(slot)
    assert seen[0] == [1004, 1005]
    assert seen[3] == [1004, 1005], "in the older generation by now"
    assert seen[-1] == []


def test_a_text_goes_on_through_a_change_of_generations():
    rng = random.Random(4)
    page = [rng.randrange(1000) for _ in range(120)]
    drafter, text = Suffix(capacity=200), []
    hits = 0
    for token in page + page:
        if text and guess(drafter, text, 1) == [token]:
            hits += 1
        text.append(token)
    assert hits > 110


def test_a_long_text_is_read_in_bites(monkeypatch):
    monkeypatch.setattr(suffix, "BITE", 10)
    drafter, text = Suffix(), [1, 2, 3] * 8
    first = drafter.draft([DraftRequest(0, text, 4), DraftRequest(1, [1, 2, 3, 1], 4)])
    assert [draft.tokens for draft in first] == [[], []], "the first text has taken all of it"
    assert guess(drafter, text, 4) == []
    assert guess(drafter, text, 4) == [1, 2, 3, 1]


@settings(max_examples=examples(60), deadline=None)
@given(TEXTS, st.integers(3, 12))
def test_guesses_are_tokens_that_were_seen(texts, capacity):
    drafter, seen = Suffix(capacity=capacity, min_match=1, min_share=0.0), set()
    for slot, text in enumerate(texts):
        seen |= set(text)
        for end in range(1, len(text) + 1):
            assert set(guess(drafter, text[:end], slot=slot)) <= seen
            assert drafter.num_states <= 2 * capacity


def test_it_is_a_drafter():
    assert isinstance(Suffix(), Drafter)
    Suffix().remove(12)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"capacity": 2}, "capacity"),
        ({"min_match": 0}, "min_match"),
        ({"min_share": 1.5}, "min_share"),
        ({"per_match": -1.0}, "per_match"),
    ],
)
def test_out_of_range(fields, name):
    with pytest.raises(ConfigError, match=name):
        Suffix(**fields)


class Owners:
    """A drafter that several users share."""

    def __init__(self, capacity: int = 1 << 17) -> None:
        self.drafter = Suffix(capacity=capacity, min_share=0.0)
        self._slots = itertools.count()

    def say(self, tokens: list[int], salt: bytes, user: str = "", count: int = 8) -> list[int]:
        """A whole sequence. Returns its drafts."""
        slot = next(self._slots)
        found = self.drafter.draft([DraftRequest(slot, tokens, count, salt=salt, user=user)])[0].tokens
        self.drafter.remove(slot)
        return found


@pytest.mark.parametrize("salt", [b"", b"a", b"b"])
@pytest.mark.parametrize("other", [b"", b"a", b"b"])
def test_texts_are_searched_within_their_salt(salt: bytes, other: bytes):
    owners = Owners()
    owners.say([1, 2, 3, 4, 5], salt)
    assert owners.say([9, 1, 2, 3], other) == ([4, 5] if salt == other else [])


def test_a_slot_changes_owner_even_if_nobody_says_so():
    drafter = Suffix()
    for salt, drafts in ((b"a", []), (b"b", []), (b"a", [4, 5])):
        own = [9, 1, 2, 3] if drafts else [1, 2, 3, 4, 5]
        assert drafter.draft([DraftRequest(0, own, 8, salt=salt)])[0].tokens == drafts
    assert drafter.draft([DraftRequest(1, [8, 1, 2, 3], 8, salt=b"")])[0].tokens == []


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), TEXT), max_size=12), TEXTS)
def test_drafts_are_the_same_whatever_other_users_said(noise, texts):
    """Running and finished, before, between and after: no draft changes."""
    alone, beside = Owners(), Owners()
    said = iter(noise)
    for text in texts:
        for slot, (user, other) in enumerate(itertools.islice(said, 3)):
            beside.drafter.draft([DraftRequest(900 + slot, other, 4, salt=b"x%d" % user, user=str(user))])
        for end in range(1, len(text) + 1):
            assert beside.say(text[:end], b"me", "me") == alone.say(text[:end], b"me", "me")


def test_a_user_with_an_equal_part_loses_no_text(monkeypatch: pytest.MonkeyPatch):
    """However much another user says, under however many salts."""
    monkeypatch.setattr(suffix, "REVIEW", 16)
    rng, owners, capacity = random.Random(5), Owners(capacity=600), 600
    mine = [5000 + i for i in range(100)]
    owners.say(mine, b"mine", "me")
    for place in range(400):
        text = [rng.randrange(3000) for _ in range(40)]
        owners.say(text, b"other%d" % (place % 300 if place > 100 else 0), "other")
        assert owners.drafter.num_states <= 2 * capacity + 2 * 40
    assert owners.say(mine[:50], b"mine", "me", 4) == mine[50:54]


def test_a_user_alone_has_all_and_gives_way_to_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suffix, "REVIEW", 16)
    rng, owners = random.Random(6), Owners(capacity=600)

    def fill(user: str) -> list[int]:
        texts = [[rng.randrange(3000) for _ in range(40)] for _ in range(60)]
        for text in texts:
            owners.say(text, user.encode(), user)
        return texts[-1]

    last = {}
    for users in ("a", "ab", "abc"):
        for user in users:
            last[user] = fill(user)
            assert 600 <= owners.drafter.num_states <= 2 * 600 + 2 * 40
        for user in users:
            assert owners.say(last[user][:20], user.encode(), user, 4) == last[user][20:24], "each has its newest text"


def test_the_texts_of_all_are_nobodys():
    """Requests without a salt share one domain, whoever sends them first."""
    owners = Owners()
    owners.say([1, 2, 3, 4, 5], b"", "a")
    assert owners.say([9, 1, 2, 3], b"", "b") == [4, 5]
    assert [domain.user for domain in owners.drafter._domains.values()] == [""]  # pyright: ignore[reportPrivateUsage]


def test_domains_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """The user with the most loses the least recently used one; a running sequence loses nothing."""
    monkeypatch.setattr(suffix, "MAX_DOMAINS", 4)
    owners = Owners()
    running = DraftRequest(1000, [1, 2, 3, 1, 2], 1, salt=b"running", user="other")
    assert owners.drafter.draft([running])[0].tokens == [3]
    owners.say([1, 2, 3, 4], b"mine", "me")
    for place in range(9):
        owners.say([1, 2, 3, 4], b"other%d" % place, "other")
    salts = list(owners.drafter._domains)  # pyright: ignore[reportPrivateUsage]
    assert salts == [b"running", b"mine", b"other7", b"other8"]
    assert owners.drafter.draft([running])[0].tokens == [3]


@pytest.mark.parametrize(
    ("used", "total", "share"),
    [([7], 10, 10), ([1, 9], 10, 9), ([5, 9], 10, 5), ([9, 9], 10, 5), ([1, 2, 99], 12, 9), ([4, 99, 99], 13, 4)],
)
def test_a_fair_share(used: list[int], total: int, share: int):
    assert find_fair_share(used, total) == share
