"""Whatever the schedule, every sequence gets what it would get alone, ends exactly once, and leaves nothing behind."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.harness import EOS, VOCAB, Harness, alone, script
from examples import examples
from tailrace.engine.kv_cache import BlockCache
from tailrace.params import SamplingParams
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Abort, Failed, Finished, Submit

pytestmark = [pytest.mark.usefixtures("both_modes"), pytest.mark.disturbs]


def prompt_of(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(VOCAB - 2) for _ in range(length)]


WORLDS = {
    "roomy": {},
    "one slot": {"max_num_seqs": 4},
    "small chunks": {"max_num_batched_tokens": 5},
    "tiny cache": {"num_blocks": 9, "max_num_batched_tokens": 24},
    "no prefix reuse": {"prefix_reuse": False},
    "large blocks": {"block_size": 32, "num_blocks": 20},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("world", WORLDS)
def test_outputs_are_those_of_running_alone(world):
    harness = Harness(**WORLDS[world])
    jobs = [(prompt_of(i % 5, 3 + 7 * (i % 11)), 5 + i % 30, 1 + i % 4) for i in range(40)]
    for i, (prompt, count, n) in enumerate(jobs):
        harness.submit(f"r{i}", prompt, max_tokens=count, n=n, priority=i % 3)
    stories = harness.run()
    for i, (prompt, count, n) in enumerate(jobs):
        for index in range(n):
            story = stories[f"r{i}", 0, index]
            assert story.tokens == alone(prompt, count)
            assert story.end.reason == "length"
    stats = harness.engine.stats()
    assert (stats.preemptions > 0) == (world == "tiny cache")
    assert (stats.cached_tokens > 0) == (world not in ("no prefix reuse",))


@pytest.mark.few(1)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_lives(data):
    """Requests come, are aborted at any moment and come again, in a cache that is always too small."""
    harness = Harness(
        num_blocks=data.draw(st.integers(3, 14)),
        max_num_seqs=data.draw(st.integers(3, 6)),
        max_num_batched_tokens=data.draw(st.integers(1, 40)),
        prefix_reuse=data.draw(st.booleans()),
    )
    expected, aborted = {}, set()
    for i in range(data.draw(st.integers(1, 14))):
        prompt = prompt_of(data.draw(st.integers(0, 3)), data.draw(st.integers(1, 40)))
        count, n = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 3))
        harness.submit(f"r{i}", prompt, max_tokens=count, n=n, priority=data.draw(st.integers(0, 2)))
        for index in range(n):
            expected[f"r{i}", 0, index] = alone(prompt, count)
        for _ in range(data.draw(st.integers(0, 6))):
            harness.step()
        if data.draw(st.booleans()):
            victim = f"r{data.draw(st.integers(0, i))}"
            if (victim, 0) not in harness.closed:
                harness.engine.abort(Abort(victim, 0))
                aborted.add(victim)
    limit = harness.engine.limits.max_len
    for name, story in harness.run().items():
        if isinstance(story.end, Failed):
            assert story.end.code == "context_length_exceeded"
            assert name[0] in aborted or not story.tokens
        elif story.end.reason == "abort":
            assert name[0] in aborted
            assert story.tokens == expected[name][: len(story.tokens)]
        else:
            wanted = expected[name]
            assert story.tokens == wanted[: len(story.tokens)]
            assert len(story.tokens) == len(wanted) or len(story.tokens) < limit


def faulty_copy(monkeypatch):
    monkeypatch.setattr(ScriptedRunner, "copy_blocks", lambda self, pairs: None)


def no_copy_on_write(monkeypatch):
    monkeypatch.setattr(BlockCache, "_must_copy", lambda self, sequence: False)


def wrong_match(monkeypatch):
    monkeypatch.setattr(
        BlockCache,
        "match_prefix",
        lambda self, s: [next(iter(self.by_hash.values()))] if self.by_hash and len(s.tokens) > 16 else [],
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", [faulty_copy, no_copy_on_write, wrong_match])
def test_planted_faults_are_seen(fault, monkeypatch):
    """With tokens drawn apart (seeded, n = 3), siblings that write into one block disturb each other."""

    def outputs():
        harness = Harness(ScriptedRunner(VOCAB, lambda ids: [float(hash((*ids, v)) % 7) for v in range(VOCAB)], 512))
        for i in range(6):
            harness.submit(f"r{i}", prompt_of(i, 21 + i), max_tokens=30, n=3, seed=i, temperature=1.0)
        return {name: story.tokens for name, story in harness.run().items()}

    good = outputs()
    assert outputs() == good
    fault(monkeypatch)
    assert outputs() != good


def test_a_seeded_sequence_is_the_same_in_any_company_and_after_preemption():
    def flat(ids):
        return [float(hash((*ids, v)) % 5) for v in range(VOCAB)]

    def run(**world):
        harness = Harness(ScriptedRunner(VOCAB, flat, 512), **world)
        for i in range(10):
            harness.submit(
                f"r{i}", prompt_of(i, 20), max_tokens=25, seed=i, temperature=1.0, top_p=0.9, presence_penalty=0.5
            )
        return harness, {name: story.tokens for name, story in harness.run().items()}

    _, roomy = run()
    tight, squeezed = run(num_blocks=8, max_num_batched_tokens=7)
    assert tight.engine.stats().preemptions > 0
    assert squeezed == roomy


def test_children_differ_and_unseeded_requests_differ():
    harness = Harness(ScriptedRunner(VOCAB, lambda ids: [0.0] * VOCAB, 512))
    harness.submit("seeded", [1, 2, 3], max_tokens=20, n=4, seed=7, temperature=1.0)
    for i in range(2):
        harness.submit(f"free{i}", [1, 2, 3], max_tokens=20, temperature=1.0)
    stories = harness.run()
    assert len({tuple(story.tokens) for story in stories.values()}) == 6


# ---- ends


def ends_after(k: int, token: int):
    return lambda ids: token if len(ids) >= k else 1


@pytest.mark.parametrize(
    ("params", "reason", "length", "stop"),
    [
        ({}, "stop", 3, EOS),
        ({"ignore_eos": True, "max_tokens": 9}, "length", 9, None),
        ({"ignore_eos": True, "stop_token_ids": (EOS,)}, "stop", 3, EOS),
        ({"stop_token_ids": (1,)}, "stop", 1, 1),
        ({"max_tokens": 2}, "length", 2, None),
        ({"max_tokens": 3}, "stop", 3, EOS),
    ],
)
def test_what_ends_a_sequence(params, reason, length, stop):
    harness = Harness(ScriptedRunner(VOCAB, ends_after(4, EOS), 512))
    harness.submit("a", [1, 1], **params)
    story = harness.run()["a", 0, 0]
    assert (story.end.reason, len(story.tokens), story.end.stop_token_id) == (reason, length, stop)


def test_min_tokens_bans_the_enders_until_reached():
    """The floor counts tokens before EOS: with 2, [x, y, EOS] is the shortest output (EOS is the script's only
    wish)."""
    harness = Harness(ScriptedRunner(VOCAB, lambda ids: EOS, 512))
    harness.submit("a", [1], min_tokens=2)
    story = harness.run()["a", 0, 0]
    assert story.tokens[:2] != [EOS, EOS]
    assert story.tokens[2:] == [EOS]


def test_the_context_ends_it():
    harness = Harness(max_model_len=30)
    harness.submit("a", prompt_of(1, 12))
    story = harness.run()["a", 0, 0]
    assert (len(story.tokens), story.end.reason) == (18, "length")


def test_cached_tokens_are_reported():
    harness = Harness()
    prompt = prompt_of(1, 40)
    for i in range(2):
        harness.submit(f"r{i}", prompt, max_tokens=2)
        assert harness.run()[f"r{i}", 0, 0].cached == 32 * i


# ---- refusals


@pytest.mark.parametrize(
    ("prompt", "params", "code", "param"),
    [
        ([], {}, "invalid_request", "prompt"),
        ([VOCAB], {}, "invalid_value", "prompt"),
        ([-1], {}, "invalid_value", "prompt"),
        ([1] * 512, {}, "context_length_exceeded", "prompt"),
        ([1], {"n": 9}, "invalid_value", "n"),
        ([1], {"logit_bias": {VOCAB: 1.0}}, "invalid_value", "logit_bias"),
        ([1], {"stop_token_ids": (VOCAB + 5,)}, "invalid_value", "stop_token_ids"),
        ([1], {"allowed_token_ids": (-1,)}, "invalid_value", "allowed_token_ids"),
        ([1], {"bad_words": ((1, 10**9),)}, "invalid_value", "bad_words"),
        ([1], {"logprobs": VOCAB + 1}, "invalid_value", "logprobs"),
    ],
)
def test_refusals_name_the_field_and_hurt_nobody(prompt, params, code, param):
    harness = Harness()
    harness.submit("good", [1, 2], max_tokens=5)
    harness.submit("bad", prompt, **params)
    stories = harness.run()
    assert stories["good", 0, 0].tokens == alone([1, 2], 5)
    for index in range(params.get("n", 1)):
        assert (stories["bad", 0, index].end.code, stories["bad", 0, index].end.param) == (code, param)


def test_a_full_waiting_line_refuses():
    harness = Harness(max_waiting=2)
    for i in range(4):
        harness.submit(f"r{i}", [1], max_tokens=1)
    codes = [getattr(story.end, "code", None) for story in harness.run().values()]
    assert sorted(map(str, codes)) == ["None", "None", "overloaded", "overloaded"]


def test_a_duplicate_is_refused_and_the_first_lives_on():
    harness = Harness()
    harness.engine.lifecycle.outbox.clear()
    harness.submit("a", [1], max_tokens=3)
    harness.submit("a", [1], max_tokens=3)
    refusal = harness.engine.lifecycle.outbox[b""].pop()
    assert (refusal.code, refusal.param) == ("invalid_request", "id")
    assert harness.run()["a", 0, 0].tokens == alone([1], 3)


# ---- faults


@pytest.mark.parametrize(("value", "words"), [("nan", "NaN"), ("inf", "+inf"), ("-inf", "masked")])
def test_a_bad_row_fails_its_own_request_alone(value, words):
    def sick(ids):
        row = [0.0] * VOCAB
        row[script(ids)] = 9.0
        if ids[0] == 13 and len(ids) == 4:
            row = [float("-inf")] * VOCAB if value == "-inf" else [float(value), *row[1:]]
        return row

    harness = Harness(ScriptedRunner(VOCAB, sick, 512))
    harness.submit("well", [5, 6], max_tokens=8)
    harness.submit("ill", [13, 6], max_tokens=8)
    harness.submit("ill, drawn", [13, 6], max_tokens=8, temperature=1.0, seed=1)
    stories = harness.run()
    assert stories["well", 0, 0].tokens == alone([5, 6], 8)
    for name in ("ill", "ill, drawn"):
        story = stories[name, 0, 0]
        assert len(story.tokens) == 2
        assert story.end.code == "invalid_logits"
        assert words in story.end.message


def test_everything_masked_is_an_error_of_that_request():
    harness = Harness()
    harness.submit("a", [1], allowed_token_ids=(5,), bad_words=((5,),))
    harness.submit("b", [1], max_tokens=3)
    stories = harness.run()
    assert stories["a", 0, 0].end.code == "no_token_left"
    assert stories["b", 0, 0].tokens == alone([1], 3)


def test_a_step_that_fails_takes_only_those_in_it():
    harness = Harness(ScriptedRunner(VOCAB, script, 512, fail_at=3), max_num_seqs=2)
    for i in range(4):
        harness.submit(f"r{i}", [i + 1], max_tokens=10)
    stories = harness.run()
    assert [type(stories[f"r{i}", 0, 0].end).__name__ for i in range(4)] == ["Failed", "Failed", "Finished", "Finished"]
    assert stories["r0", 0, 0].end.code == "engine_error"
    assert stories["r3", 0, 0].tokens == alone([4], 10)


def test_a_failing_prefill_fails_the_siblings_that_waited_for_it():
    harness = Harness(ScriptedRunner(VOCAB, script, 512, fail_at=0))
    harness.submit("a", [1, 2], n=3)
    assert all(isinstance(story.end, Failed) for story in harness.run().values())


# ---- aborts


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("n", [1, 3])
def test_abort_at_any_moment(steps, n):
    harness = Harness(max_num_batched_tokens=8)
    harness.submit("a", prompt_of(1, 20), max_tokens=3, n=n)
    for _ in range(steps):
        harness.step()
    alive = bool(harness.engine.requests)
    harness.engine.abort(Abort("a", 0))
    harness.step()
    assert [a.known for a in harness.aborted] == [alive]
    assert not harness.engine.requests
    assert harness.engine.stats().blocks_used == 0
    assert {story.end.reason for story in harness.run().values()} == ({"abort"} if alive else {"length"})


def test_the_same_id_again_at_once():
    harness = Harness()
    for epoch in range(5):
        harness.submit("a", [epoch], epoch=epoch, max_tokens=6)
        harness.step()
        if epoch < 4:
            harness.engine.abort(Abort("a", epoch))
    stories = harness.run()
    assert stories["a", 4, 0].tokens == alone([4], 6)
    assert all(isinstance(stories["a", epoch, 0].end, Finished) for epoch in range(5))


def test_a_front_end_that_is_gone_takes_its_requests_along():
    harness = Harness()
    harness.submit("mine", [1], max_tokens=5)
    harness.engine.submit(Submit("theirs", 0, [1], SamplingParams(max_tokens=50)), b"other")
    harness.step()
    harness.engine.abort_client(b"other")
    assert harness.run()["mine", 0, 0].end.reason == "length"


# ---- order


def test_priority_then_arrival_decides_who_starts():
    harness = Harness(max_num_seqs=1)
    for name, priority in (("c", 1), ("d", 1), ("a", 0), ("b", 0), ("z", -1)):
        harness.submit(name, [1], max_tokens=1, priority=priority)
    order = []
    while harness.engine.has_work:
        harness.step()
        order += [name[0] for name, story in harness.stories.items() if story.end and name[0] not in order]
    assert order == ["z", "a", "b", "c", "d"]


@pytest.mark.few(1)
def test_the_oldest_is_never_starved_by_preemption():
    harness = Harness(num_blocks=6, max_num_seqs=6)
    for i in range(12):
        harness.submit(f"r{i}", prompt_of(i, 16), max_tokens=60)
    first_end = None
    while first_end is None:
        harness.step()
        first_end = next((name[0] for name, story in harness.stories.items() if story.end), None)
    assert first_end == "r0"
    harness.run()


def test_logprobs_are_sent_with_their_tokens():
    harness = Harness()
    harness.submit("a", [1], max_tokens=4, logprobs=3)
    harness.submit("b", [1], max_tokens=4)
    stories = harness.run()
    entries = stories["a", 0, 0].logprobs
    assert [entry.top_ids[0] for entry in entries] == stories["a", 0, 0].tokens
    assert all(entry.rank == 1 and len(entry.top_ids) == 3 and entry.logprob < 0 for entry in entries)
    assert stories["b", 0, 0].logprobs == []
