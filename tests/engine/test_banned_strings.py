"""Banned strings: never in what is sent, whatever the token_bytes; held back no longer than needed; everything else as
without."""

from __future__ import annotations

import random
import re
import threading

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.harness import EOS, VOCAB, Fickle, Harness, token_bytes_of
from examples import examples
from tailrace.engine.checks.banned_strings import BannedStringCheck, Bans
from tailrace.engine.token_bytes import TokenBytes
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Abort, Failed, Finished, Submit

pytestmark = pytest.mark.usefixtures("both_modes")

# every way to spell a few letters, and nothing special beside
SPELT = [b"", b"a", b"b", b"c", b" ", b"ab", b"bc", b" a", b"ca", b"abc", b" b", b"B"] + [b"."] * (VOCAB - 12)


def watched(script, block_size=16, **limits) -> Harness:
    harness = Harness(ScriptedRunner(VOCAB, script, 512, block_size=block_size), block_size=block_size, **limits)
    harness.engine.token_bytes = TokenBytes(SPELT)
    return harness


def text_of(tokens: list[int]) -> bytes:
    return b"".join(SPELT[t] for t in tokens)


def letters(ids: list[int]) -> int:
    """One of the first twelve, by all that was said."""
    return hash(tuple(ids)) % 12


@pytest.mark.few(3)
@pytest.mark.disturbs
@pytest.mark.parametrize("banned", [("abc",), ("ab", "ca"), (" ",), ("c a", "aa", "bca")])
@pytest.mark.parametrize("num_blocks", [64, 6])
def test_case_11_the_text_never_holds_a_banned_string(banned, num_blocks):
    """Whatever tokens spell it, at temperature 1, several sequences, with preemption where blocks are few."""
    harness = watched(letters, num_blocks=num_blocks)
    for i in range(4):
        harness.submit(
            f"r{i}",
            [20 + i, 21],
            temperature=1.0,
            seed=i,
            banned_strings=banned,
            max_tokens=60,
            n=1 + i % 2,
            logprobs=1,
            ignore_eos=True,
        )
    harness.run()
    assert len(harness.stories) == 6
    for story in harness.stories.values():
        assert isinstance(story.end, Finished)
        assert len(story.tokens) == 60
        assert len(story.logprobs) == 60
        assert not any(b.encode() in text_of(story.tokens) for b in banned)
    # one character is within a token or not at all, so no such token is drawn in the first place
    assert (harness.engine.counters.rewinds > 0) == (banned != (" ",))


def test_case_is_ignored_if_asked():
    for ignore, expected in ((False, True), (True, False)):
        harness = watched(lambda ids: 11 if ids[-1] == 1 else 1)  # a, B, a, B …
        extra = {"banned_ignore_case": True} if ignore else {}
        harness.submit("r", [20], banned_strings=("ab",), max_tokens=8, **extra)
        harness.run()
        assert (b"aB" in text_of(harness.stories["r", 0, 0].tokens)) is expected


def test_without_a_ban_that_bites_nothing_changes():
    plain, watch = watched(letters), watched(letters)
    plain.submit("r", [20], temperature=1.0, seed=3, max_tokens=50)
    watch.submit("r", [20], temperature=1.0, seed=3, max_tokens=50, banned_strings=("zzz",))
    plain.run()
    watch.run()
    assert watch.stories["r", 0, 0].tokens == plain.stories["r", 0, 0].tokens
    assert watch.engine.counters.rewinds == 0


def test_it_is_what_drawing_without_the_token_gives():
    """The ban is at that position alone: greedy, the second best is taken, and the banned token is free again
    afterwards."""
    table = torch.full((VOCAB,), -10.0)
    table[1], table[2], table[3] = 3.0, 2.0, 1.0  # a, b, c

    harness = watched(lambda ids: table)
    harness.submit("r", [20], banned_strings=("aa",), max_tokens=6)
    harness.run()
    # every a but the last is followed by the wish for another, so it gives way to the second best
    assert text_of(harness.stories["r", 0, 0].tokens) == b"bbbbba"


def test_who_comes_while_another_goes_back_has_room_for_the_copy():
    """The first goes back into a block that is published; the second begins with that block, and the last free one is
    its own. (Then there was none for the copy that the first writes to, and the engine ended.)"""
    prompt, banned = list(range(20, 30)), [1, 2, 3]
    harness = watched(lambda ids: banned[(len(ids) - 10) % 3], num_blocks=4, block_size=4)
    harness.submit("r", prompt, banned_strings=("abc",), max_tokens=4, ignore_eos=True)
    while not harness.engine.counters.rewinds:
        harness.step()
    harness.submit("s", [*prompt, 1, 2, 9], max_tokens=1)
    stories = harness.run()
    assert [len(stories[name, 0, 0].tokens) for name in "rs"] == [4, 1]


def ended(story, field: str) -> bool:
    return isinstance(story.end, Finished) and (story.end.reason, story.end.cause) == ("abort", field)


def test_where_nothing_else_is_left_the_sequence_ends_with_what_it_has_said():
    harness = watched(lambda ids: 1 if len(ids) < 4 else 13)
    asked = {"allowed_token_ids": (1, 12, 13), "bad_words": ((1, 1),), "max_tokens": 5}
    harness.submit("r", [20], banned_strings=(".",), **asked)
    harness.submit("p", [20], banned_regex=("[.]", "x"), **asked)
    harness.submit("nothing", [20], banned_strings=(".",), allowed_token_ids=(12, 13), max_tokens=5)
    harness.submit("other", [20], max_tokens=5)
    harness.run()
    for name, field, text in (
        ("r", "banned_strings", b"a"),
        ("p", "banned_regex", b"a"),
        ("nothing", "banned_strings", b""),
    ):
        assert ended(harness.stories[name, 0, 0], field)
        assert text_of(harness.stories[name, 0, 0].tokens) == text
    assert harness.stories["other", 0, 0].end.reason == "length"


@pytest.mark.parametrize("field", ["banned_strings", "banned_regex"])
def test_what_is_drawn_in_vain_is_bounded(field):
    """After any of the eleven letters no other may come. Each attempt takes back two tokens; sixteen may be, and are
    before all letters have been tried."""
    letters = "abcdefghijk"
    bans = {"banned_strings": tuple(x + y for x in letters for y in letters), "banned_regex": ("[a-k][a-k]",)}
    harness = watched(lambda ids: 1, redraws_per_token=1)
    harness.engine.token_bytes = TokenBytes([letter.encode() for letter in letters] + [b"."] * (VOCAB - 11))
    harness.submit(
        "r", [20], allowed_token_ids=tuple(range(11)), max_tokens=400, ignore_eos=True, **{field: bans[field]}
    )
    harness.run()
    story, counters = harness.stories["r", 0, 0], harness.engine.counters
    assert ended(story, field)
    assert not story.tokens
    assert (counters.rewinds, counters.generated_tokens) == (8, 18)


def test_single_letters_cost_no_draws():
    harness = watched(letters)
    harness.submit("r", [20], temperature=1.0, seed=1, banned_strings=("a", " ", "B"), max_tokens=60, ignore_eos=True)
    harness.run()
    assert set(text_of(harness.stories["r", 0, 0].tokens)) <= set(b"bc.")
    assert harness.engine.counters.generated_tokens == harness.engine.counters.steps == 60


def test_a_token_that_matches_by_itself_is_drawn_once():
    harness = watched(lambda ids: torch.linspace(3, 0, VOCAB))
    harness.submit("r", [20], banned_regex=("[a-c]",), max_tokens=30)
    harness.run()
    assert text_of(harness.stories["r", 0, 0].tokens) == b"." * 30 or set(harness.stories["r", 0, 0].tokens) == {0}
    assert harness.engine.counters.rewinds <= 10


@pytest.mark.parametrize("shown", [False, True])
def test_what_ends_the_text_or_is_hidden_is_not_in_it(shown):
    """An EOS whose name holds a banned letter must stay possible; a hidden token does not hide what comes together
    around it."""
    token_bytes = TokenBytes([*SPELT[:-1], b"<a>"], frozenset({EOS, 30}))
    harness = watched(lambda ids: EOS if len(ids) > 5 else 2)
    harness.engine.token_bytes = token_bytes
    harness.submit(
        "r", [20], banned_strings=("a",), max_tokens=20, skip_special_tokens=False, include_stop_str_in_output=shown
    )
    harness.run()
    assert (len(harness.stories["r", 0, 0].tokens) < 20) is not shown
    harness = watched(lambda ids: (1, 30, 2)[len(ids) % 3])
    harness.engine.token_bytes = token_bytes
    harness.submit("r", [20], banned_strings=("ab",), max_tokens=20, ignore_eos=True)
    harness.run()
    seen = b"".join(SPELT[t] for t in harness.stories["r", 0, 0].tokens if t != 30)
    assert b"ab" not in seen
    assert 30 in harness.stories["r", 0, 0].tokens


def test_it_needs_the_bytes_of_the_tokens_and_no_state():
    harness = Harness()
    harness.submit("r", [20], banned_strings=("x",), max_tokens=5)
    harness.run()
    end = harness.stories["r", 0, 0].end
    assert isinstance(end, Failed)
    assert end.param == "banned_strings"
    for field in ("banned_strings", "banned_regex"):
        with pytest.raises(ParameterError, match=field):
            SamplingParams(**{field: ("x",)}, mirostat=2)


PATTERNS = [
    "a+b",
    "[^a-d]b",
    "c(ab|b.)a",
    "é",
    "[^\\x00-\\x7f]",
    "(?i:ca)[bd]*a",
    "a.{0,3}c",
    "\ufffd",
    "b{2,3}",
    "[a-c]d[a-c]",
]
PIECES = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"\xc3", b"\xa9", b"A", b" ", b"\xe2\x82"]), max_size=3).map(
    b"".join
)


@pytest.mark.long
@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(PIECES, min_size=6, max_size=24),
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True),
    st.lists(st.sampled_from(["ab", "dc", "é", "b\ufffd"]), max_size=1),
    st.integers(0, 2**20),
    st.booleans(),
)
# a token completes one character and begins the next, and then nothing may follow: the text may end before both or
# behind both
@example([b"\xa9\xc3", *[b""] * 8, b"\xc3"], ["\ufffd"], [], 6460, False)
def test_the_text_never_holds_a_match_whatever_the_vocabulary(pieces, patterns, strings, seed, guesses):
    spelt = [*pieces, *[b"d"] * (VOCAB - len(pieces))]
    spelt[20] = b"d"  # the prompt: a character that began there would go on in the output
    rng = random.Random(seed)
    table = {last: torch.tensor([rng.gauss(0, 2) for _ in range(VOCAB)]) for last in range(VOCAB)}
    asked = {
        "banned_regex": tuple(patterns),
        "banned_strings": tuple(strings),
        "seed": seed,
        "temperature": 1.0,
        "max_tokens": rng.randint(1, 24),
        "n": rng.randint(1, 2),
        "min_tokens": rng.choice([0, 1]),
        "stop": rng.choice([(), ("da",)]),
        "allowed_token_ids": tuple(range(26)),
    }

    def run(drafter=None, **limits):
        harness = Harness(
            ScriptedRunner(VOCAB, lambda ids: table[ids[-1]], 512),
            token_bytes=token_bytes_of(spelt, frozenset()),
            drafter=drafter and (lambda sampler: drafter),
            **limits,
        )
        harness.submit("r", [20], **asked)
        harness.run()
        return {name: (story.tokens, story.end.reason, story.end.cause) for name, story in harness.stories.items()}

    found = run()
    for tokens, reason, cause in found.values():
        text = b"".join(spelt[token] for token in tokens).decode("utf-8", "replace")
        assert not any(re.search(pattern, text) for pattern in patterns), text
        assert not any(string in text for string in strings)
        assert reason in ("stop", "length") or cause in ("banned_regex", "banned_strings")
    if guesses:
        texts = [[20, *tokens] for tokens, *_ in found.values()]
        assert run(Fickle(texts, 0.7)) == found
        assert run(num_blocks=5) == found


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from(["ab", "abc", "bca", "cc", "a b", "aab"]), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(0, 11), max_size=30),
)
def test_the_watch_finds_the_earliest_end_and_holds_back_the_least(banned, tokens):
    watch = BannedStringCheck(Bans.of(SamplingParams(banned_strings=tuple(banned)), TokenBytes(SPELT), VOCAB, ()))
    said: list[int] = []
    sent: list[int] = []
    for token in tokens:
        whole = text_of([*said, token])
        hit = any(b.encode() in whole for b in banned)
        position = watch.push(token)
        assert (position is not None) == hit
        if position is not None:
            ends = [(whole.find(b.encode()) + len(b), whole.find(b.encode())) for b in banned if b.encode() in whole]
            first_end = min(ends)[0]
            start = min(begin for end, begin in ends if end == first_end)
            assert position >= len(sent)
            assert position == len(sent) or len(text_of([*said, token][:position])) <= start
            assert start < len(text_of([*said, token][: position + 1]))
            del said[position:]
            watch.back_to(position)
            continue
        said.append(token)
        watch.held.append((token, None))
        sent_before = list(sent)
        sent += [t for t, _ in watch.release()]
        assert said[: len(sent)] == sent
        text = text_of(said)
        hold = max(
            (n for n in range(1, len(text) + 1) if any(b.encode().startswith(text[-n:]) for b in banned)), default=0
        )
        before = max(len(text) - hold, len(text_of(sent_before)))
        assert len(text_of(sent)) <= before  # nothing goes out that may still become one
        if len(sent) < len(said):  # and nothing else is held
            assert len(text_of(said[: len(sent) + 1])) > len(text) - hold
    sent += [t for t, _ in watch.release(everything=True)]
    assert sent == said


def test_bans_that_nobody_waits_for_are_not_compiled(monkeypatch):
    """And none of those that wait, once the engine is closed."""
    made, begun, go = [], threading.Event(), threading.Event()

    def slow(params, *_):
        made.append(params.banned_strings)
        begun.set()
        go.wait(300)
        raise ParameterError("planted", "banned_strings")

    monkeypatch.setattr(Bans, "of", slow)
    engine = watched(letters).engine
    try:
        for id in "abc":
            engine.submit(Submit(id, 0, [1], SamplingParams(banned_strings=(id,)), 0))
        begun.wait(300)
        engine.abort(Abort("b", 0, "gone"))
        last = engine.requests[b"", "c", 0].banning
        engine.close()
        assert last is not None
        assert last.cancelled()
    finally:
        go.set()
    engine.compilations._thread.submit("", lambda: None).result(300)
    assert made == [("a",)]


def test_users_take_turns_to_compile_bans(monkeypatch):
    """B's, which comes last, comes after one of A's."""
    made, begun, go = [], threading.Event(), threading.Event()

    def slow(params, *_):
        made.append(params.banned_strings[0])
        begun.set()
        assert go.wait(300)
        raise ParameterError("planted", "banned_strings")

    monkeypatch.setattr(Bans, "of", slow)
    watch = watched(letters)
    for id in ("z0", "a0", "a1", "a2", "b0"):
        watch.submit(id, [1], user=id[0], banned_strings=(id,))
        assert begun.wait(300)
    waiting = [request.banning for request in watch.engine.requests.values()]
    monkeypatch.setattr(watch.engine.compilations._thread, "_clock", lambda: 0.0)
    go.set()
    for future in waiting:
        assert future is not None
        assert future.exception(300) is not None
    assert made == ["z0", "a0", "b0", "a1", "a2"]
