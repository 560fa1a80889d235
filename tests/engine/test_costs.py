"""What one request takes of the engine's own thread is bounded: a grammar that is too slow ends its request, many
sequences take turns."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from engine.harness import VOCAB as HARNESS_VOCAB
from engine.harness import Harness, alone
from engine.test_structured_output import EOS, TOKEN_BYTES, VOCAB, ids
from tailrace.config import GrammarConfig
from tailrace.engine import appending, draws
from tailrace.engine.host_budget import resting_sequences
from tailrace.errors import GrammarLimitError, ParameterError
from tailrace.grammar import bitmasks, completion
from tailrace.grammar.base import BitmaskJob
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.grammar.service import Grammars
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.params import SamplingParams
from tailrace.request.field_checks import MAX_PHRASE
from tailrace.request.options import Grammar, Watermark
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling import watermark_transformers
from tailrace.sampling.backends import reference
from tailrace.sampling.verify import verify_request

[A] = ids("a")


@pytest.mark.long
def test_who_waits_for_a_mask_sits_out_and_nobody_waits_with_it(both_modes, monkeypatch):
    """The mask of one grammar is held back: all others go on meanwhile, but those of the same grammar, whose matchers
    share a lock. (A step waited for all masks.)"""
    held, release, gate = [], threading.Event(), bitmasks.fill_group

    def late(jobs, *args):
        if any(job.owner.id == "slow" and len(job.owner.sequences[0].tokens) > 3 for job in jobs) and not held:
            held.append(jobs)
            release.wait()
        return gate(jobs, *args)

    def told(hold: bool) -> dict:
        release.clear()
        grammars = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
        harness = Harness(
            ScriptedRunner(VOCAB, lambda tokens: A, 512), grammars=grammars, token_bytes=TOKEN_BYTES, eos=EOS
        )
        try:
            fast = Grammar(kind="regex", source="[ab]{40}")
            harness.submit("slow", ids("x"), grammar=Grammar(kind="regex", source="[abc]{10}"), n=3, max_tokens=10)
            while not harness.stories["slow", 0, 0].tokens:
                harness.step()
            harness.submit("fast", ids("x"), grammar=fast, max_tokens=40)
            harness.submit("plain", ids("x"), max_tokens=40, ignore_eos=True)
            done = 0
            while harness.engine.has_work:
                harness.step()
                others = [harness.stories[name, 0, 0].end for name in ("fast", "plain")]
                if hold and all(others) and not release.is_set():
                    done = len(harness.stories["slow", 0, 0].tokens)
                    release.set()
            assert not hold or (held and 0 < done < 10)
            return {name: story.tokens for name, story in harness.stories.items()}
        finally:
            release.set()
            grammars.close()

    monkeypatch.setattr(bitmasks, "group_jobs", lambda jobs: [[i] for i in range(len(jobs))])
    quiet = told(hold=False)
    assert [len(tokens) for tokens in quiet.values()].count(10) == 3
    monkeypatch.setattr(bitmasks, "fill_group", late)
    monkeypatch.setattr(draws, "LATE_S", 0.02)
    assert told(hold=True) == quiet


def test_of_one_call_only_one_job_is_filled_among_strangers():
    kind = type("Kind", (), {"fill_together": None, "can_batch": lambda self, drafts: True})
    jobs = [BitmaskJob(kind(), [], torch.zeros(1), owner) for owner in ("a", "b", "a", "c", "a", "b", None, None)]
    assert bitmasks.group_jobs(jobs) == [[0, 1, 3, 6, 7], [2, 4], [5]]


def test_what_all_do_at_once_is_spread_over_steps(both_modes, monkeypatch):
    """What took no time until now takes long, for all sequences of a call, in the same step: they say the same, a
    little later."""
    harness = Harness(host_ms=5)
    commit, said = harness.engine.slots.commit, []

    def sudden(slots, tokens):
        if len(harness.stories["many", 0, 0].tokens) >= 2:
            until = time.thread_time() + 0.006
            while time.thread_time() < until:
                pass
            said.append(harness.engine.counters.steps)
        commit(slots, tokens)

    monkeypatch.setattr(harness.engine.slots, "commit", sudden)
    harness.submit("many", [5, 6, 7], n=7, max_tokens=5, ignore_eos=True)
    stories = harness.run(400)
    assert {tuple(story.tokens) for story in stories.values()} == {tuple(alone([5, 6, 7], 5))}
    assert max(said.count(step) for step in set(said)) <= 2, "of two steps, where they overlap"


@pytest.mark.long
def test_searches_for_a_way_out_of_one_call_share_the_time(both_modes, monkeypatch):
    """64 sequences looked at one place each in a step, however long that took."""
    looked: list[int] = []
    ranked = completion.CompletionSearch.rank_continuations
    grammars = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
    harness = Harness(ScriptedRunner(VOCAB, lambda tokens: A, 512), grammars=grammars, token_bytes=TOKEN_BYTES, eos=EOS)
    monkeypatch.setattr(appending, "SEARCH_S", 0.0)
    monkeypatch.setattr(
        completion.CompletionSearch,
        "rank_continuations",
        lambda *args: looked.append(harness.engine.counters.steps) or ranked(*args),
    )
    try:
        source = Grammar(kind="regex", source="[ab]{3,9}c", close_in_time=True)
        harness.submit("many", ids("x"), grammar=source, n=6, max_tokens=7)
        stories = harness.run(5000)
    finally:
        grammars.close()
    looked_at = [looked.count(step) for step in set(looked)]
    assert max(looked_at) == 1
    assert {text[-1] for text in (story.tokens for story in stories.values())} == set(ids("c"))


def test_one_mask_of_a_grammar_is_bounded():
    """By the library's own count of items, whatever the clock says: the 23,500 of this one took 0.3 s."""
    library = GrammarCompiler(Vocabulary.of(None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB))
    branch = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(10)}}
    with pytest.raises(UnsupportedError, match="Too many items"):
        library.compile(Grammar(kind="json_schema", source=json.dumps({"anyOf": [branch] * 500})))
    rules = " | ".join(f'"a" s{i}' for i in range(40))
    source = f"root ::= s\ns ::= {rules}\n" + "\n".join(f's{i} ::= s "a"? | [a-z] s | "a"' for i in range(40))
    place = library.load(library.compile(Grammar(kind="ebnf", source=source))).matcher()

    def go_on() -> None:
        for _ in range(9):
            place.get_allowed()
            assert place.accept(A)

    with pytest.raises(GrammarLimitError):
        go_on()


class Member:
    waits_for_mask = False

    def __init__(self, request: object, num_output: int, host_s: float, user: str = "") -> None:
        self.request, self.num_output, self.host_s, self.user = request, num_output, host_s, user


def test_those_that_have_said_least_go_first():
    big, small = SimpleNamespace(shared_name=(b"", "big")), SimpleNamespace(shared_name=(b"", "small"))
    members = [Member(big, 5, 0.02), Member(big, 4, 0.02), Member(big, 6, 0.02)]
    running = [*members, Member(small, 9, 5.0)]
    assert resting_sequences(running, 0.06) == set()
    assert resting_sequences(running, 0.05) == {members[2]}
    assert resting_sequences(running, 0.03) == {members[0], members[2]}
    assert resting_sequences(running, 0.001) == {members[0], members[2]}, "one goes always"


def test_calls_of_one_user_share_a_budget_while_another_user_runs():
    calls = [SimpleNamespace(shared_name=(b"", str(place))) for place in range(4)]
    mine = [Member(call, place, 0.02, "a") for place, call in enumerate(calls[:3])]
    other = Member(calls[3], 9, 0.02, "b")
    assert resting_sequences(mine, 0.05) == set(), "nobody else runs"
    assert resting_sequences([*mine, other], 0.05) == {mine[2]}
    assert resting_sequences([*mine, other], 0.06) == set()


def test_sequences_of_one_request_take_turns_where_they_take_long(both_modes, monkeypatch):
    harness = Harness(host_ms=5)
    commit, said = harness.engine.slots.commit, []

    def slow(slots, tokens):
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        said.append(harness.engine.counters.steps)
        commit(slots, tokens)

    monkeypatch.setattr(harness.engine.slots, "commit", slow)
    harness.submit("many", [5, 6, 7], n=7, max_tokens=6, ignore_eos=True)
    harness.submit("one", [8], max_tokens=6, ignore_eos=True)
    stories = harness.run(400)
    for index in range(7):
        assert stories["many", 0, index].tokens == alone([5, 6, 7], 6)
    assert stories["one", 0, 0].tokens == alone([8], 6)
    later = [said.count(step) for step in set(said) if step > min(said) + 2]
    assert later
    assert max(later) <= 4, "three of them, and the other request"


@pytest.mark.parametrize("prompts", [1, 7])
def test_draws_beyond_the_kernels_take_turns_from_the_first_on(both_modes, monkeypatch, prompts):
    """7 sequences of one call, of one prompt or of one each: what the sampler's fallback takes counts, also before
    anything was drawn."""
    harness = Harness(host_ms=5, max_num_batched_tokens=512)
    drawn: list[int] = []

    def slow(*args):
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        drawn.append(harness.engine.counters.steps)
        return verify_request(*args)

    monkeypatch.setattr(reference, "verify_request", slow)
    asked = {"max_tokens": 4, "ignore_eos": True, "temperature": 1.0, "normalize_logits": True}
    for epoch in range(prompts):
        harness.submit("many", [5, 6, 7], epoch, seed=epoch, n=7 // prompts, **asked)
    harness.submit("one", [8], max_tokens=4, ignore_eos=True)
    stories = harness.run(400)
    assert max(drawn.count(step) for step in set(drawn)) == 1
    quiet = Harness(host_ms=10**6)
    for epoch in range(prompts):
        quiet.submit("many", [5, 6, 7], epoch, seed=epoch, n=7 // prompts, **asked)
    for name, story in quiet.run(400).items():
        assert stories[name].tokens == story.tokens
    assert stories["one", 0, 0].tokens == alone([8], 4)


def test_green_lists_of_transformers_count_also_where_they_are_kept(both_modes, monkeypatch):
    """Each takes a shuffle of the vocabulary unless it was asked for lately, so what the last one took says nothing of
    the next."""
    mark = Watermark(kind="kgw", scheme="transformers", key=3, context=1)
    monkeypatch.setattr(watermark_transformers, "ID_S", 0.45e-3 / HARNESS_VOCAB)  # two in a step
    harness = Harness(host_ms=1, max_num_batched_tokens=512)
    harness.submit("many", [5, 6, 7], n=7, max_tokens=6, ignore_eos=True, watermark=mark)
    counts = [0]
    while harness.engine.has_work:
        harness.step()
        counts.append(sum(len(story.tokens) for story in harness.stories.values()))
    assert counts[-1] == 42
    assert max(b - a for a, b in pairwise(counts)) <= 2


def test_many_copies_do_not_all_draw_in_the_step_of_their_prompt(both_modes):
    """What they say is the same."""
    harness = Harness(max_num_seqs=40, max_num_batched_tokens=512, num_blocks=200)
    harness.submit("many", [5, 6, 7], n=40, max_tokens=3, ignore_eos=True)
    begun = [0]
    while begun[-1] < 40:
        harness.step()
        begun.append(sum(bool(story.tokens) for story in harness.stories.values()))
    assert max(b - a for a, b in pairwise(begun)) < 40
    for story in harness.run(100).values():
        assert story.tokens == alone([5, 6, 7], 3)


@pytest.mark.parametrize("field", ["bad_words", "sequence_bias"])
def test_phrases_are_bounded(field: str):
    def params(length: int) -> SamplingParams:
        phrase = (5,) * length
        return SamplingParams(**{field: (phrase,) if field == "bad_words" else ((phrase, 1.0),)})

    params(MAX_PHRASE)
    with pytest.raises(
        ParameterError, match=rf"{field} must hold sequences of at most {MAX_PHRASE} token ids"
    ) as caught:
        params(MAX_PHRASE + 1)
    assert caught.value.param == field
