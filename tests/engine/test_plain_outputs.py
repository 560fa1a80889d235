"""The short ways of a usual step (decode_plan.py, plain_outputs.py, assemble_decodes) against the whole ones, which are
the specification: the same messages in the same order, the same sequences, slots and blocks after every step."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import fields

import msgspec
import pytest
import torch

from engine import mixes
from engine.combinations import DRAFTERS
from engine.harness import Harness
from engine.test_overlap import grammars  # noqa: F401
from engine.test_overlap_with_drafts import texts_of
from tailrace.config import SchedulerConfig
from tailrace.engine import appending, lifecycle, outputs, speculation, step
from tailrace.engine.batch import assemble_batch, assemble_decodes
from tailrace.engine.decode_plan import plan_decodes
from tailrace.engine.plain_outputs import PlainOutputs
from tailrace.engine.request_setup import Compilations
from tailrace.engine.scheduler import plan_step
from tailrace.grammar.service import Grammars
from tailrace.wire.messages import Tokens

SEEDS = range(12)
USERS = (("",), ("one", "two", "three"))


class Recorded(mixes.Listening):
    """Keeps each message as it was sent, and the books after each step."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.record: list[object] = []

    def note(self, message) -> None:
        told = msgspec.structs.replace(message, queued_s=0.0) if isinstance(message, Tokens) else message
        self.record.append(msgspec.msgpack.encode(told))
        super().note(message)

    def step(self) -> None:
        super().step()
        engine = self.engine
        books = [
            (s.request.id, s.index, s.slot, [*s.tokens], s.num_computed, [*s.blocks], s.num_published, [*s.hashes])
            for s in (*engine.running, *engine.waiting)
        ]
        shares = {user: (share.tokens, share.service) for user, share in engine.lifecycle.shares.read().items()}
        tables = engine.lifecycle.tables
        rows = [(slot, tables.table[slot, :written].tolist()) for slot, written in enumerate(tables.written)]
        outputs = [None if slot is None else slot.num_output for slot in engine.slots.slots]
        self.record.append((books, shares, rows, outputs, engine.counters.generated_tokens))


def record_crowd(
    seed: int,
    grammars: Grammars,  # noqa: F811
    users: tuple[str, ...],
    overlap: str = "auto",
    **options,
) -> list[object]:
    """The messages and books of a random crowd."""
    _, harness = mixes.crowd(seed, grammars, users, Recorded, overlap=overlap, **options)
    assert isinstance(harness, Recorded)
    return harness.record


@pytest.fixture(autouse=True)
def no_clock_decides(monkeypatch):
    """Searches end by themselves, and a request comes with its grammar and bans compiled."""

    def begin(compilations, request, token_bytes) -> None:
        whole(compilations, request, token_bytes)
        wait(request.compilations)

    whole = Compilations.begin
    monkeypatch.setattr(Compilations, "begin", begin)
    monkeypatch.setattr(appending, "SEARCH_S", 60.0)
    monkeypatch.setattr(speculation, "LOOK_S", 60.0)


@pytest.fixture
def long_way(monkeypatch):
    """Call it to switch the short ways off."""

    def switch() -> None:
        monkeypatch.setattr(lifecycle, "is_plain", lambda sequence: False)
        monkeypatch.setattr(lifecycle, "plan_decodes", lambda *given: None)

    return switch


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("users", USERS, ids=["one user", "three users"])
def test_both_ways_leave_the_same_messages_and_books(grammars, users, overlap, long_way):  # noqa: F811
    short = [record_crowd(seed, grammars, users, overlap) for seed in SEEDS]
    long_way()
    for seed, record in zip(SEEDS, short, strict=True):
        assert record_crowd(seed, grammars, users, overlap) == record


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("drafter", ["n-gram", "oracle"])
def test_both_ways_leave_the_same_beside_drafts(grammars, drafter, overlap, long_way):  # noqa: F811
    texts = [texts_of(mixes.crowd(seed, grammars, overlap="off")[0]) for seed in SEEDS]
    made = [DRAFTERS[drafter](known) for known in texts]
    options = [{"drafter": one, "rule": "exact"} for one in made]
    short = [record_crowd(s, grammars, USERS[0], overlap, **o) for s, o in zip(SEEDS, options, strict=True)]
    long_way()
    for seed, one, record in zip(SEEDS, options, short, strict=True):
        assert record_crowd(seed, grammars, USERS[0], overlap, **one) == record


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_many_crowds_leave_the_same(grammars, first, long_way):  # noqa: F811
    ways = [(seed, USERS[seed % 2], ("on", "off")[seed // 2 % 2]) for seed in range(first, first + 50)]
    short = [record_crowd(s, grammars, users, overlap) for s, users, overlap in ways]
    long_way()
    for (seed, users, overlap), record in zip(ways, short, strict=True):
        assert record_crowd(seed, grammars, users, overlap) == record


def test_crowds_take_the_short_ways(grammars, monkeypatch):  # noqa: F811
    seen = {"plans": 0, "outputs": 0, "endings": 0}

    def plan(*given):
        made = plan_decodes(*given)
        seen["plans"] += made is not None
        return made

    def process(self, one):
        done, ended = whole(self, one), one.sequence.slot < 0
        seen["outputs"] += done
        seen["endings"] += done and ended
        return done

    whole = PlainOutputs.process
    monkeypatch.setattr(lifecycle, "plan_decodes", plan)
    monkeypatch.setattr(outputs.PlainOutputs, "process", process)
    for seed in SEEDS:
        mixes.crowd(seed, grammars)
    assert min(seen.values()) > 0, seen


def append_blindly(appender, sequence, token):
    """As TokenAppender.append_plain, without a look at the end ids."""
    if len(sequence.tokens) + 1 >= sequence.request.max_len:
        return None
    appender.slots.commit_drawn(sequence.slot, token)
    sequence.tokens.append(token)
    return appending.APPENDED


FAULTS = {
    "a token is not counted": ("tailrace.sampling.slots.Slots.commit_drawn", lambda slots, slot, token: None),
    "a user is not charged": ("tailrace.engine.plain_outputs.PlainOutputs.settle", lambda outputs: None),
    "an end id is not seen": ("tailrace.engine.appending.TokenAppender.append_plain", append_blindly),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(grammars, fault, long_way, monkeypatch):  # noqa: F811
    with monkeypatch.context() as planted:
        planted.setattr(*FAULTS[fault])
        short = []
        for seed in SEEDS:
            try:
                short.append(record_crowd(seed, grammars, USERS[1]))
            except (AssertionError, RuntimeError):
                short.append([])
    long_way()
    assert any(record_crowd(s, grammars, USERS[1]) != r for s, r in zip(SEEDS, short, strict=True))


def test_the_short_plan_is_the_scheduler_s(grammars, monkeypatch):  # noqa: F811
    compared = 0

    def compare(running, cache, limits: SchedulerConfig):
        nonlocal compared
        short = plan_decodes(running, cache, limits)
        if short is not None:
            life = harness.engine.lifecycle
            room = (len(life.free_slots), limits.max_num_batched_tokens)
            long = plan_step(running, [], cache, limits, room, life.shares.read())
            assert (short.work, short.spare, short.preempt, short.admit) == (long.work, long.spare, [], [])
            assert not [*long.preempt, *long.admit]
            compared += 1
        return short

    monkeypatch.setattr(lifecycle, "plan_decodes", compare)
    for blocks in (6, 12, 64):
        harness = Harness(num_blocks=blocks, block_size=4)
        for place in range(6):
            harness.submit(f"{place}", list(range(place + 1)), max_tokens=9 + place, n=1 + place % 2)
        harness.run()
    assert compared > 20


def test_the_short_batch_is_the_whole_one(monkeypatch):
    compared = 0

    def compare(work, tables, cache, previous, observed):
        nonlocal compared
        short = assemble_decodes(work, tables, cache, previous, True)
        whole = assemble_batch(work, {}, tables, cache, previous)
        for field in fields(whole.batch):
            one, other = getattr(short.batch, field.name), getattr(whole.batch, field.name)
            same = torch.equal(one, other) if isinstance(one, torch.Tensor) else str(one) == str(other)
            assert same, field.name
        assert (short.rows, short.sampling, short.scored, short.hidden_rows) == (
            whole.rows,
            whole.sampling,
            whole.scored,
            whole.hidden_rows,
        )
        compared += 1
        return whole

    monkeypatch.setattr(step, "assemble_decodes", compare)
    for overlap in ("on", "off"):
        harness = Harness(block_size=4, overlap=overlap)
        for place in range(6):
            harness.submit(f"{place}", list(range(place + 1)), max_tokens=9 + place, n=1 + place % 2)
        harness.run()
    assert compared > 10
