"""Prompts are read beside sequences that decode in chunks that slow these down by no more than was asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.harness import VOCAB, Harness, script
from tailrace.engine import step as step_module
from tailrace.engine.chunk_size import LEAST, ChunkSize
from tailrace.runners.scripted import ScriptedRunner

MOST = 512


def took(tokens: int) -> float:
    """Reading the weights, and the work of each token."""
    return 0.020 + 0.0006 * tokens


def told(slowdown: float, *sizes: int) -> ChunkSize:
    chunks = ChunkSize(MOST, slowdown)
    for size in sizes:
        for _ in range(5):
            chunks.record(size, took(size))
    return chunks


@pytest.mark.parametrize("decodes", [1, 4, 8, 20])
@pytest.mark.parametrize("slowdown", [1.5, 3.0])
def test_the_step_is_as_long_as_asked(decodes: int, slowdown: float):
    chunk = told(slowdown, decodes, 64, 100, 200, 400, MOST).limit_chunk(decodes, 1, [10**6])
    assert LEAST < chunk < MOST - decodes
    assert took(decodes + chunk) == pytest.approx(slowdown * took(decodes), abs=2 * 0.0006)  # two tokens


@pytest.mark.parametrize(("crowd", "times"), [(0.5, 1.0), (1.0, 1.0), (1.5, 1.5), (3.0, 3.0), (30.0, 4.0)])
def test_a_step_may_be_longer_where_more_wait_than_decode(crowd: float, times: float):
    chunk = told(1.5, 8, 64, 100, 200, 400, MOST).limit_chunk(8, crowd, [10**6])
    assert took(8 + chunk) == pytest.approx(1.5 * times * took(8), abs=2 * 0.0006)


@pytest.mark.parametrize(("crowd", "waiting", "at_once"), [(3.0, 300, True), (3.0, 505, False), (1.0, 300, False)])
def test_all_that_wait_are_read_in_one_step_if_it_can(crowd: float, waiting: int, at_once: bool):
    chunks = told(1.5, 8, 64, 100, 200)
    assert (chunks.limit_chunk(8, crowd, [waiting]) == waiting) is at_once
    assert at_once or chunks.limit_chunk(8, crowd, [waiting]) == chunks.limit_chunk(8, crowd, [10**6])


def test_a_step_that_reads_all_is_bounded_too():
    """Beside one sequence that decodes two prompts may take 1.5 · 2 · 8 = 24 times as long, and no longer; sizes that
    were not seen count by the token."""
    chunks = ChunkSize(MOST, 1.5)
    for tokens, seconds in ((1, 0.001), (128, 0.010)):
        for _ in range(5):
            chunks.record(tokens, seconds)
    assert chunks.limit_chunk(1, 2.0, [140, 140]) == 280
    assert chunks.limit_chunk(1, 2.0, [165, 165]) < 100


def test_without_decodes_or_a_bound_or_knowledge_a_step_is_full():
    assert told(3.0, 8, 64, MOST).limit_chunk(0, 1, [10**6]) == MOST
    assert told(0.0, 8, 64, MOST).limit_chunk(8, 1, [10**6]) == MOST
    assert told(3.0).limit_chunk(8, 1, [10**6]) == MOST
    assert told(1000.0, 8, 64, MOST).limit_chunk(8, 1, [10**6]) == MOST - 8


def test_a_prompt_always_moves():
    assert told(1.0, 8, 64, MOST).limit_chunk(8, 1, [10**6]) == LEAST
    assert told(3.0, 8, 64, MOST).limit_chunk(MOST, 1, [10**6]) == LEAST


def test_what_was_told_wrongly_is_no_step():
    chunks = told(3.0)
    chunks.record(0, 1.0)
    chunks.record(5, 0.0)
    assert chunks.limit_chunk(8, 1, [10**6]) == MOST


def test_nothing_is_believed_of_sizes_that_were_not_seen():
    """Decodes alone cost the same however many they are; only then each token costs something."""
    chunks = ChunkSize(MOST, 3.0)
    for decodes in (4, 6, 8):
        for _ in range(5):
            chunks.record(decodes, 0.020)
    sizes = []
    for _ in range(40):
        sizes.append(8 + chunks.limit_chunk(8, 1, [10**6]))
        chunks.record(sizes[-1], max(0.020, 0.001 * sizes[-1]))
    assert max(sizes) < 80  # 60 takes three times as long; a size is known after three steps of it
    assert 50 < sizes[-1] < 64
    for _ in range(30_000):  # so many steps without prompts that larger ones are forgotten
        chunks.record(8, 0.020)
    assert chunks.limit_chunk(8, 1, [10**6]) < 64


class TimedRunner(ScriptedRunner):
    """Its passes take a simulated time. steps: (tokens, logits) of each."""

    def __init__(self) -> None:
        super().__init__(VOCAB, script, 512)
        self.now, self.passes = 0.0, list[tuple[int, int]]()

    def forward(self, batch):
        self.now += took(len(batch.token_ids))
        self.passes.append((len(batch.token_ids), len(batch.wanted)))
        return super().forward(batch)


def passes_of(monkeypatch: pytest.MonkeyPatch, slowdown: float) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Four sequences decode; then long prompts arrive one by one. → the passes, and what all say."""
    runner = TimedRunner()
    monkeypatch.setattr(step_module, "time", SimpleNamespace(perf_counter=lambda: runner.now))
    harness = Harness(runner, num_blocks=200, max_num_batched_tokens=256, prefill_slowdown=slowdown, overlap="off")
    for i in range(4):
        harness.submit(f"short {i}", [i, 5, 9], max_tokens=120, ignore_eos=True)
    for i in range(4):
        for _ in range(20):
            harness.step()
        harness.submit(f"long {i}", [(7 * j + i) % VOCAB for j in range(250)], max_tokens=20, ignore_eos=True)
    stories = harness.run()
    return runner.passes, [stories[key].tokens for key in sorted(stories)]


def test_streams_are_not_stopped_by_prompts(monkeypatch: pytest.MonkeyPatch):
    bounded, said = passes_of(monkeypatch, 3.0)
    free, expected = passes_of(monkeypatch, 0.0)
    assert said == expected

    def slowest(passes: list[tuple[int, int]]) -> float:
        """Among the passes with prompts beside sequences that decode."""
        mixed = [took(tokens) / took(rows) for tokens, rows in passes if rows >= 4 and tokens > rows + 1]
        return max(mixed)

    assert slowest(free) > 6
    assert slowest(bounded) < 3.5
    assert max(tokens for tokens, rows in bounded if rows >= 4) > 2 * LEAST  # no smaller than need be


def test_a_crowd_is_read_in_larger_steps(monkeypatch: pytest.MonkeyPatch):
    """Beside one sequence that decodes a prompt arrives, then six at once."""
    runner = TimedRunner()
    monkeypatch.setattr(step_module, "time", SimpleNamespace(perf_counter=lambda: runner.now))
    harness = Harness(runner, num_blocks=200, max_num_batched_tokens=256, prefill_slowdown=1.5, overlap="off")
    harness.submit("first", [1, 5, 9], max_tokens=200, ignore_eos=True)
    largest = []
    for wave, count in enumerate((1, 1, 6)):
        for _ in range(20):
            harness.step()
        begun = len(runner.passes)
        for i in range(count):
            harness.submit(f"{wave} {i}", [(7 * j + i) % VOCAB for j in range(120)], max_tokens=1, ignore_eos=True)
        for _ in range(12):
            harness.step()
        largest.append(max(tokens for tokens, _ in runner.passes[begun:]))
    assert largest[1] < 2 * LEAST + 10
    assert largest[2] > 2 * largest[1]


def test_what_the_cache_holds_does_not_wait(monkeypatch: pytest.MonkeyPatch):
    """A crowd whose prompts begin with what was read before is read in one step, where only their ends need it."""
    runner = TimedRunner()
    monkeypatch.setattr(step_module, "time", SimpleNamespace(perf_counter=lambda: runner.now))
    harness = Harness(runner, num_blocks=200, max_num_batched_tokens=256, prefill_slowdown=1.5, overlap="off")
    harness.submit("first", [1, 5, 9], max_tokens=200, ignore_eos=True)
    system = [(7 * j) % VOCAB for j in range(160)]
    for i in range(8):
        harness.submit(f"known {i}", [*system, i], max_tokens=1, ignore_eos=True)
        for _ in range(20):
            harness.step()
    begun = len(runner.passes)
    for i in range(6):
        harness.submit(f"crowd {i}", [*system, *range(i, i + 10)], max_tokens=1, ignore_eos=True)
    for _ in range(2):
        harness.step()
    assert runner.passes[begun:][0][1] == 7, "all are read in the first step"
