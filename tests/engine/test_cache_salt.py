"""Cached prefixes are shared within a salt: no other salt can find them, whatever happens to the sequences."""

from __future__ import annotations

from collections import Counter, defaultdict
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.harness import Harness
from tailrace.drafting.suffix import Suffix
from tailrace.engine.block_hash import block_hash, prefix_hash, root_of
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.lifecycle import Lifecycle
from tailrace.explain.record import ExplainOptions
from tailrace.params import SamplingParams
from tailrace.wire.messages import Owner, Replay, Submit

BLOCK = 4
SALTS = [b"", b"a", b"b"]
PROMPT = list(range(1, 22))  # five blocks, and a token that is always computed


def submit(harness: Harness, id: str, prompt: list[int], salt: bytes, replay: Replay | None = None, **params) -> None:
    """A greedy request under this salt."""
    asked = SamplingParams(**{"temperature": 0.0, "max_tokens": 3} | params)
    harness.engine.submit(Submit(id, 0, prompt, asked, replay=replay, owner=Owner(salt)))


def cached(salts: list[bytes], prompt: list[int] = PROMPT) -> list[int]:
    """How many tokens of the prompt each request has from the cache, one after the other."""
    harness, found = Harness(block_size=BLOCK), []
    for place, salt in enumerate(salts):
        submit(harness, str(place), prompt, salt)
        found.append(harness.run()[str(place), 0, 0].cached)
    return found


@pytest.mark.parametrize("first", SALTS)
@pytest.mark.parametrize("second", SALTS)
def test_a_prefix_is_found_under_its_salt_alone(first: bytes, second: bytes):
    known = 20 if first == second else 0
    assert cached([first, second, first, second]) == [0, known, 20, 20]


def test_a_salt_changes_no_token():
    stories = []
    for salt in SALTS:
        harness = Harness(block_size=BLOCK)
        for seed in range(3):
            submit(harness, str(seed), PROMPT, salt, temperature=1.0, seed=seed, n=2, max_tokens=20)
        stories.append({name: story.tokens for name, story in harness.run().items()})
    assert stories[0] == stories[1] == stories[2]


@pytest.mark.parametrize("own", SALTS)
def test_the_work_of_a_prefill_does_not_show_another_salts_prompt(own: bytes, monkeypatch: pytest.MonkeyPatch):
    """Each step of a request computes as many tokens after the same prompt of another salt as after another prompt."""
    mark, steps = Lifecycle.mark_computed, []
    monkeypatch.setattr(
        Lifecycle,
        "mark_computed",
        lambda lifecycle, work: steps.append([tokens for _, tokens in work]) or mark(lifecycle, work),
    )

    def work_after(prompt: list[int], salt: bytes) -> list[list[int]]:
        harness = Harness(block_size=BLOCK, max_num_batched_tokens=8)
        submit(harness, "before", prompt, salt)
        harness.run()
        steps.clear()
        submit(harness, "own", PROMPT, own)
        harness.run()
        return list(steps)

    other = PROMPT[::-1]
    for salt in SALTS:
        if salt == own:
            assert sum(map(sum, work_after(PROMPT, salt))) == sum(map(sum, work_after(other, salt))) - 20
        else:
            assert work_after(PROMPT, salt) == work_after(other, salt)


@given(st.lists(st.integers(0, 96), min_size=BLOCK, max_size=BLOCK), st.integers(0, 3))
def test_without_a_salt_hashes_are_as_before(ids: list[int], adapter: int):
    expected = blake2b(adapter.to_bytes(4) + np.array(ids, dtype=np.int64).tobytes(), digest_size=16).digest()
    assert block_hash(root_of(adapter), ids) == expected == prefix_hash([*ids, 1], BLOCK, 1, adapter)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 3), st.integers(0, 3))
def test_roots_differ(one: bytes, other: bytes, adapter: int, second: int):
    assert (root_of(adapter, one) == root_of(second, other)) == ((adapter, one) == (second, other))
    assert len(root_of(adapter, one)) != 16  # so it is no block's hash


class Watched:
    """Notes under which salts each hash is published, and under which salt each cached block is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.salts: dict[bytes, set[bytes]] = defaultdict(set)
        self.taken: Counter[bytes] = Counter()
        publish, attach = BlockCache.publish_blocks, BlockCache.attach

        def publish_watched(cache, sequence):
            publish(cache, sequence)
            for block in sequence.blocks[: sequence.num_published]:
                if (digest := cache.hash_of.get(block)) is not None:
                    self.salts[digest].add(sequence.request.owner.cache_salt)

        def attach_watched(cache, sequence, blocks):
            for block in blocks:
                assert self.salts[cache.hash_of[block]] == {sequence.request.owner.cache_salt}
            self.taken[sequence.request.owner.cache_salt] += len(blocks)
            attach(cache, sequence, blocks)

        monkeypatch.setattr(BlockCache, "publish_blocks", publish_watched)
        monkeypatch.setattr(BlockCache, "attach", attach_watched)


KINDS: list[dict] = [
    {},
    {"n": 3, "temperature": 1.0},
    {"guidance_scale": 2.0, "negative_prompt": tuple(PROMPT[:9])},
    {"prompt_logprobs": 1},
]


@settings(deadline=None)
@given(st.data())
def test_forks_replays_and_preempted_sequences_keep_the_salt(data: st.DataObject):
    """Requests of all kinds, of three salts, with the same few prefixes, in a cache that is too small for them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        watched = Watched(monkeypatch)
        harness = Harness(block_size=BLOCK, num_blocks=30)
        harness.note = lambda message: None  # it knows no replays
        for place in range(data.draw(st.integers(2, 12))):
            salt = data.draw(st.sampled_from(SALTS))
            prompt, params = PROMPT[: data.draw(st.integers(5, 21))], data.draw(st.sampled_from(KINDS))
            replay = Replay([7, 8, 9], [2], ExplainOptions()) if not params and data.draw(st.booleans()) else None
            submit(harness, str(place), prompt, salt, replay, max_tokens=data.draw(st.integers(1, 40)), **params)
            for _ in range(data.draw(st.integers(0, 8))):
                harness.step()
        while harness.engine.has_work:
            harness.step()
        assert all(len(salts) == 1 for salts in watched.salts.values())


def test_a_preempted_sequence_finds_its_own_blocks(monkeypatch: pytest.MonkeyPatch):
    watched = Watched(monkeypatch)
    harness = Harness(block_size=BLOCK, num_blocks=24)
    for place, salt in enumerate([b"a", b"b", b"a", b"b"]):
        submit(harness, str(place), PROMPT, salt, max_tokens=40)
    harness.run()
    assert harness.engine.counters.preemptions
    assert watched.taken[b"a"]
    assert watched.taken[b"b"]


@pytest.mark.parametrize("first", SALTS)
@pytest.mark.parametrize("second", SALTS)
def test_the_drafts_of_the_suffix_drafter_show_no_other_salts_text(first: bytes, second: bytes):
    """A request has as many drafts, accepted ones and steps after its own text under another salt as after another
    text."""

    def work_after(prompt: list[int]) -> tuple[int, int, int]:
        harness = Harness(drafter=lambda sampler: Suffix(), prefix_reuse=False)
        submit(harness, "before", prompt, first, max_tokens=30)
        harness.run()
        counters = harness.engine.counters
        before = counters.drafted_tokens, counters.accepted_tokens
        submit(harness, "own", PROMPT, second, max_tokens=30)
        steps = 0
        while harness.engine.has_work:
            harness.engine.step()
            steps += 1
        return counters.drafted_tokens - before[0], counters.accepted_tokens - before[1], steps

    same, other = work_after(PROMPT), work_after([token + 30 for token in PROMPT])
    assert (same == other) == (first != second)
    if first == second:
        assert same[1] > other[1]
        assert same[2] < other[2]
