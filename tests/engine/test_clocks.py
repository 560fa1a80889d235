"""No clock decides what a client is told. Every clock that the engine reads jumps by a schedule, and masks and
compilations seem to be late; the crowds of mixes.py are told what they are told in peace."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from engine.combinations import DRAFTERS, EOS, TOKEN_BYTES, VOCAB
from engine.harness import Harness
from engine.mixes import Told, alike, crowd
from engine.test_overlap_with_drafts import plainly, texts_of
from tailrace.config import GrammarConfig
from tailrace.engine import appending, scheduler
from tailrace.engine.checks.structured_output import StructuredOutput
from tailrace.engine.draws import Masks, SampleSkippedError
from tailrace.engine.outputs import OutputProcessor
from tailrace.engine.request_setup import Compilations
from tailrace.errors import GrammarLimitError
from tailrace.grammar import bitmasks
from tailrace.grammar.base import BitmaskJob, DraftMaskError
from tailrace.grammar.filling import BitmaskFilling
from tailrace.grammar.llguidance import LLGuidanceMatcher
from tailrace.grammar.service import Grammars
from tailrace.request.options import Grammar
from tailrace.runners.scripted import ScriptedRunner

# Seconds: a turn of the kernel, a search for forced tokens, a garbage collection, a machine that swaps.
LONG_S = 0.15
JUMPS = (0.0005, 0.003, 0.012, LONG_S, 3.0)
WHAT = (
    "a late mask",
    "a slow mask",
    "a slow token",
    "drafts without masks",
    "a search that pauses",
    "a turn of another sequence",
    "a compilation that is late",
)
NAMES = ("none", "n-gram", "suffix", "draft model", "oracle")


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
    yield made
    made.close()


class Inline:
    """An executor that works at once, on the caller's thread."""

    def submit(self, work: Callable[[], None]) -> Future[None]:
        done = Future[None]()
        done.set_result(work())
        return done


class HeldMasks(BitmaskFilling):
    """Masks that are filled, and seem to be unfinished for a number of looks, each mask for its own."""

    def __init__(self, filling: BitmaskFilling, looks: list[int]) -> None:
        self.errors, self.seconds, self._looks, self._looked = filling.errors, filling.seconds, looks, 0

    @property
    def done(self) -> list[bool]:  # type: ignore[override]
        self._looked += 1
        return [self._looked > looks for looks in self._looks]

    def wait(self, within_s: float | None = None) -> list[Exception | None]:
        return self.errors


class Schedule:
    """Clocks that jump, and work that is late, all by one seed. met: what the schedule has brought about.

    Only the engine's thread sees jumps. Masks are filled there too, so each run of a seed is the same.
    """

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.rng, self.ahead_s, self.met = random.Random(seed), 0.0, Counter[str]()
        self._thread = threading.get_ident()
        for name in ("thread_time", "perf_counter", "monotonic"):
            patch.setattr(time, name, partial(self.read, getattr(time, name)))
        patch.setattr(Grammars, "fill", self.fill)
        patch.setattr(Compilations, "finish", wrap_call(self.finish, Compilations.finish))
        self.note(patch)

    def read(self, clock: Callable[[], float]) -> float:
        if threading.get_ident() != self._thread:
            return clock()
        if self.rng.random() < 0.05:
            self.ahead_s += self.rng.choice(JUMPS)
        return clock() + self.ahead_s

    def fill(self, jobs: list[BitmaskJob]) -> BitmaskFilling:
        filling = bitmasks.start_filling(Inline(), 1, jobs)  # type: ignore[arg-type]
        late = self.rng.random() < 0.4
        return HeldMasks(filling, [self.rng.randrange(30) if late else 0 for _ in jobs])

    def finish(self, real: Callable, compilations: Compilations, *args) -> list:
        if self.rng.random() < 0.5:
            self.met["a compilation that is late"] += 1
            return []
        return real(compilations, *args)

    def note(self, patch: pytest.MonkeyPatch) -> None:
        """Count what the clocks bring about."""
        met = self.met

        def skip(real, outputs, sequence, error) -> None:
            met["a late mask"] += isinstance(error, SampleSkippedError)
            real(outputs, sequence, error)

        def rest(real, running, budget_s):
            found = real(running, budget_s)
            met["a turn of another sequence"] += bool(found)
            return found

        def close(real, appender, sequence, constraint, token):
            outcome = real(appender, sequence, constraint, token)
            met["a search that pauses"] += constraint.searching
            return outcome

        def fill(real, job, limit_s) -> None:
            try:
                real(job, limit_s)
            except DraftMaskError:
                met["drafts without masks"] += 1
                raise

        def work(what: str, real, *args):
            if self.rng.random() < 0.1:
                self.ahead_s += LONG_S
                met[what] += 1
            return real(*args)

        calls: tuple[tuple[Any, str, Callable], ...] = (
            (OutputProcessor, "_without_mask", skip),
            (scheduler, "idle_sequences", rest),
            (appending.TokenAppender, "closing", close),
            (bitmasks, "fill_job", fill),
            (LLGuidanceMatcher, "fill", partial(work, "a slow mask")),
            (StructuredOutput, "push", partial(work, "a slow token")),
        )
        for owner, name, wrapper in calls:
            patch.setattr(owner, name, wrap_call(wrapper, getattr(owner, name)))


def wrap_call(wrapper: Callable, real: Callable) -> Callable:
    """Return a function that calls the wrapper with the real one. In a class it binds as a method does."""
    return lambda *args: wrapper(real, *args)


def is_told_the_same(grammars: Grammars, seed: int, name: str, overlap: str) -> tuple[bool, Counter[str]]:
    """Whether the crowd is told under a schedule what it is told in peace, and what the schedule has brought about."""
    plain = plainly(grammars, seed)
    with pytest.MonkeyPatch.context() as patch:
        schedule = Schedule(seed, patch)
        options = {
            "host_ms": schedule.rng.choice([0.5, 25.0, 1e6]),
            "prefill_slowdown": schedule.rng.choice([0.0, 2.0]),
            "adaptive": schedule.rng.random() < 0.5,
        }
        users = schedule.rng.choice([("",), ("a", "b")])
        drafter = DRAFTERS[name](texts_of(plain))
        found = crowd(seed, grammars, users, overlap=overlap, drafter=drafter, rule="exact", **options)[0]
    return alike(plain, found), schedule.met


@pytest.mark.few(8)
@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1, 5, 12, 81, 243, 244])
def test_no_clock_changes_what_is_told(grammars, seed, name, overlap):
    assert is_told_the_same(grammars, seed, name, overlap)[0]


@pytest.mark.long
@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", range(0, 600, 50))
def test_no_clock_changes_what_many_crowds_are_told(grammars, first, name, overlap):
    assert [s for s in range(first, first + 50) if not is_told_the_same(grammars, s, name, overlap)[0]] == []


def test_the_schedule_brings_about_all_that_time_decides(grammars):
    """Else the tests above say little."""
    met = Counter[str]()
    for seed in range(300, 330):
        met += is_told_the_same(grammars, seed, "oracle", "on")[1]
    assert min(met[what] for what in WHAT) > 2, met


# ---- planted faults


def fail_slow_masks(patch: pytest.MonkeyPatch) -> None:
    """A mask has a time limit."""
    real = bitmasks.fill_job

    def fill(job: BitmaskJob, limit_s: float) -> None:
        until = time.thread_time() + limit_s
        real(job, limit_s)
        if time.thread_time() > until:
            raise GrammarLimitError("it takes too long")

    patch.setattr(bitmasks, "fill_job", fill)


def fail_slow_tokens(patch: pytest.MonkeyPatch) -> None:
    """So has the token that a grammar takes."""
    real = appending.push_to_grammar

    def push(constraint: StructuredOutput, token: int) -> bool:
        until = time.thread_time() + 0.05
        found = real(constraint, token)
        if time.thread_time() > until:
            raise GrammarLimitError("it takes too long")
        return found

    patch.setattr(appending, "push_to_grammar", push)


def keep_samples_without_masks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OutputProcessor, "_without_mask", lambda self, sequence, error: None)
    real = Masks.wait

    def wait(self: Masks) -> None:
        real(self)
        for slot in [slot for slot, error in self.errors.items() if isinstance(error, SampleSkippedError)]:
            del self.errors[slot]

    patch.setattr(Masks, "wait", wait)


def close_no_text_while_it_is_searched(patch: pytest.MonkeyPatch) -> None:
    """A search that pauses counts as one that has found nothing."""
    patch.setattr(StructuredOutput, "searching", False)


@pytest.mark.parametrize(
    "fault",
    [fail_slow_masks, fail_slow_tokens, keep_samples_without_masks, close_no_text_while_it_is_searched],
    ids=lambda fault: fault.__name__,
)
def test_planted_faults_are_seen(grammars, fault, monkeypatch):
    fault(monkeypatch)

    def seen(seed: int) -> bool:
        try:
            return not is_told_the_same(grammars, seed, "none", "on")[0]
        except Exception:
            return True

    assert any(seen(seed) for seed in range(300, 360))


# ---- work decides


def test_a_grammar_ends_by_its_work_not_by_a_clock(grammars, monkeypatch):
    """Its request ends at the same token in each run. The other request goes on."""
    rules = " | ".join(f'"a" s{i}' for i in range(40))
    source = f"root ::= s\ns ::= {rules}\n" + "\n".join(f's{i} ::= s "a"? | [a-z] s | "a"' for i in range(40))

    def told() -> dict[str, Told]:
        harness = Harness(
            ScriptedRunner(VOCAB, lambda tokens: 0, 512), grammars=grammars, token_bytes=TOKEN_BYTES, eos=EOS
        )
        harness.submit("heavy", [1], grammar=Grammar(kind="ebnf", source=source), max_tokens=60)
        harness.submit("other", [1], max_tokens=60)
        ends = {name: (story.tokens, story.end) for (name, *_), story in harness.run(20_000).items()}
        return {
            name: Told(tokens, [], (type(end).__name__, getattr(end, "code", None), getattr(end, "message", None)))
            for name, (tokens, end) in ends.items()
        }

    expected = told()
    assert expected["heavy"].end[:2] == ("Failed", "grammar_limit")
    assert " items; max is 1000" in expected["heavy"].end[2]
    assert 1 < len(expected["heavy"].tokens) < 60
    assert len(expected["other"].tokens) == 60
    Schedule(1, monkeypatch)
    assert told() == expected
