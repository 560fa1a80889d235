"""Banned strings: never in what is sent, whatever the spelling; held back no longer than needed; everything else as without."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.harness import VOCAB, Harness
from tailrace.engine.banned import BannedText
from tailrace.engine.spelling import Spelling
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Failed, Finished

pytestmark = pytest.mark.usefixtures("both_modes")

# every way to spell a few letters, and nothing special beside
SPELT = [b"", b"a", b"b", b"c", b" ", b"ab", b"bc", b" a", b"ca", b"abc", b" b", b"B"] + [b"."] * (VOCAB - 12)


def watched(script, **limits) -> Harness:
    harness = Harness(ScriptedRunner(VOCAB, script, 512, block_size=16), **limits)
    harness.engine.spelling = Spelling(SPELT)
    return harness


def text_of(tokens: list[int]) -> bytes:
    return b"".join(SPELT[t] for t in tokens)


def letters(ids: list[int]) -> int:
    """One of the first twelve, by all that was said."""
    return hash(tuple(ids)) % 12


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
    assert harness.engine.counters.rewinds > 0


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
    """The ban is at that position alone: greedy, the second best is taken, and the banned token is free again afterwards."""
    table = torch.full((VOCAB,), -10.0)
    table[1], table[2], table[3] = 3.0, 2.0, 1.0  # a, b, c

    harness = watched(lambda ids: table)
    harness.submit("r", [20], banned_strings=("aa",), max_tokens=6)
    harness.run()
    # every a but the last is followed by the wish for another, so it gives way to the second best
    assert text_of(harness.stories["r", 0, 0].tokens) == b"bbbbba"


def test_a_model_that_wants_nothing_else_fails_clearly():
    harness = watched(letters)
    harness.submit("r", [20], banned_strings=(".",), allowed_token_ids=tuple(range(12, 60)), max_tokens=5)
    harness.submit("other", [20], max_tokens=5)
    harness.run()
    assert isinstance(harness.stories["r", 0, 0].end, Failed)
    assert isinstance(harness.stories["other", 0, 0].end, Finished)


def test_it_needs_the_bytes_of_the_tokens_and_no_state():
    harness = Harness()
    harness.submit("r", [20], banned_strings=("x",), max_tokens=5)
    harness.run()
    end = harness.stories["r", 0, 0].end
    assert isinstance(end, Failed)
    assert end.param == "banned_strings"
    with pytest.raises(ParameterError, match="banned_strings"):
        SamplingParams(banned_strings=("x",), mirostat=2)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["ab", "abc", "bca", "cc", "a b", "aab"]), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(0, 11), max_size=30),
)
def test_the_watch_finds_the_earliest_end_and_holds_back_the_least(banned, tokens):
    watch = BannedText(SamplingParams(banned_strings=tuple(banned)), SPELT)
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
