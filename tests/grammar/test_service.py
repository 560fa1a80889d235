"""The grammar service as the engine sees it: compiling is bounded, cached, restarted and ended; masks are filled
together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count

import pytest
import torch

from grammar.vocabularies import EOS, PADDED, SPECIAL, small, spelled
from tailrace.config import GrammarConfig
from tailrace.errors import (
    DeadEndError,
    EngineError,
    GrammarError,
    MachineBusyError,
    OverloadedError,
    ParameterError,
    RowError,
)
from tailrace.grammar import bitmasks, compile_pool, compile_process, grammar_cache
from tailrace.grammar.base import BitmaskJob, Compiled, DraftMaskError
from tailrace.grammar.grammar_cache import RefusedGrammars, UserCache
from tailrace.grammar.matcher import GrammarMatcher
from tailrace.grammar.service import Grammars, hash_grammar
from tailrace.request.options import Grammar, MarkedSpan

CONFIG = GrammarConfig(timeout_s=1.5, memory_mib=128, workers=1, threads=2)
WORDS = -(-PADDED // 32)
DOUBLING = {
    f"d{i}": {
        "anyOf": [
            {"type": "object", "properties": {x: {"$ref": f"#/$defs/d{i + 1}"} for x in "xyz"}},
            {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 3, "maxItems": 3},
        ]
    }
    for i in range(40)
}
RULES = [f"a{i} ::= a{i + 1} a{i + 1}" for i in range(40)]


def schema(value: object) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(value))


def regex(source: str) -> Grammar:
    return Grammar(kind="regex", source=source)


def tag(form: dict[str, object]) -> Grammar:
    return Grammar(kind="structural_tag", source=json.dumps({"format": form}))


def until(condition: Callable[[], object], within_s: float = 300) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


BOMBS = {
    "patterns that all must match": schema({"allOf": [{"pattern": f"[ab]*a[ab]{{{i}}}$"} for i in range(100)]}),
    "a thousand million items": schema({"type": "array", "maxItems": 1_000_000_000}),
    "a thousand million characters": schema({"type": "string", "minLength": 1_000_000_000}),
    "repeats of all lengths": regex("|".join(f"[a-z]{{{i}}}{i}[0-9]*x" for i in range(3000))),
    "references that multiply": schema(
        {"allOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d0"}], "$defs": {**DOUBLING, "d40": {"type": "string"}}}
    ),
}

LONG = {
    "a length of ten million": regex("a{10000000}"),
    "rules that double": Grammar(kind="ebnf", source="\n".join(["root ::= a0", *RULES, 'a40 ::= "x"'])),
    "nested repeats": schema({"pattern": "^((((a{1000}){1000}){1000}){1000}){1000}$", "type": "string"}),
}


def grammars(config: GrammarConfig = CONFIG) -> Grammars:
    return Grammars(config, None, spelled(), SPECIAL, EOS, PADDED)


@pytest.fixture(scope="module")
def service() -> Iterator[Grammars]:
    made = grammars()
    yield made
    made.close()


def number(i: int, **more) -> Grammar:
    return Grammar(kind="regex", source=f"x{i}[0-9]", **more)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def next_children(made: Grammars, number: int) -> Iterator[int]:
    """The children that compile grammars, one after the other."""
    seen = set(made.pids)
    for _ in range(number):
        until(lambda: bool(set(made.pids) - seen))
        [child] = set(made.pids) - seen
        seen.add(child)
        yield child


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_nothing_starts_before_the_first_grammar():
    threads = threading.active_count()
    made = grammars()
    assert threading.active_count() == threads
    assert made.pids == []
    made.close()


def test_a_grammar_is_compiled_once_and_kept(service: Grammars):
    first = service.compile(number(0))
    compiled = first.result(300)
    assert compiled.matcher().prefix(b"x07") == 3
    assert service.compile(number(0)).result(0) is compiled
    # what does not change the language does not count
    assert service.compile(number(0, close_in_time=True, after=MarkedSpan("<a>", "</a>"))).result(0) is compiled
    assert hash_grammar(number(0)) != hash_grammar(number(0, whitespace=3)) != hash_grammar(number(1))


def test_fifty_at_once_and_equal_ones_together(service: Grammars):
    futures = [service.compile(number(i % 25)) for i in range(50)]
    compiled = [future.result(300) for future in futures]
    assert all(a is b for a, b in zip(compiled[:25], compiled[25:], strict=True))
    for i in range(25):
        assert compiled[i].matcher().prefix(f"x{i}7".encode()) == len(f"x{i}7")
    assert not any(future.cancel() for future in futures)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_costs_this_process_nothing(service: Grammars, name: str):
    service.compile(number(99)).result(300)  # the library is there before memory is measured
    before = resident_mib()
    future = service.compile(BOMBS[name])
    with pytest.raises(ParameterError, match=r"too big|takes longer than|takes more than|not supported") as caught:
        future.result(300)
    assert caught.value.param == "grammar"
    assert resident_mib() - before < 24
    if name == next(iter(BOMBS)):  # no half result was kept
        with pytest.raises(ParameterError):
            service.compile(BOMBS[name]).result(300)
    assert service.compile(number(98)).result(300).matcher().prefix(b"x980") == 4


@pytest.mark.parametrize("name", LONG)
def test_what_only_forces_much_costs_nothing(service: Grammars, name: str):
    service.compile(number(99)).result(300)
    before = resident_mib()
    matcher = service.compile(LONG[name]).result(300).matcher()
    assert len(matcher.forced(8, 9.0)) <= 8
    assert not matcher.finished
    assert resident_mib() - before < 24


@pytest.mark.long
def test_a_process_killed_from_outside_is_replaced_and_no_request_notices(service: Grammars):
    for i in range(3):
        service.compile(number(50 + 2 * i)).result(300)
        [process] = service.pids
        os.kill(process, signal.SIGKILL)
        time.sleep(0.02 * i)  # the children may have ended, too, or not
        assert service.compile(number(51 + 2 * i)).result(300).matcher().prefix(b"x5") == 2
    numbers = count(600)
    until(lambda: service.compile(number(next(numbers))).result(300) and service.pids != [process])


def test_a_process_that_is_stopped_does_not_stop_its_children(service: Grammars):
    service.compile(number(70)).result(300)
    [process] = service.pids
    os.kill(process, signal.SIGSTOP)
    try:
        assert service.compile(number(71)).result(300).matcher().prefix(b"x71") == 3
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_grammar_whose_process_breaks_is_refused():
    made = grammars(GrammarConfig(timeout_s=60, memory_mib=8192))
    made.compile(number(0)).result(300)
    [process] = made.pids
    future = made.compile(BOMBS["patterns that all must match"])
    for child in next_children(made, 2):  # the first one is in the fast lane, which proves nothing
        os.kill(child, signal.SIGSEGV)
    with pytest.raises(ParameterError, match="breaks the compiler"):
        future.result(300)
    assert made.pids == [process]
    made.close()


def test_a_grammar_whose_process_is_killed_from_outside_is_tried_again_and_never_blamed():
    made = grammars(GrammarConfig(timeout_s=60, memory_mib=8192, workers=1))
    made.compile(number(0)).result(300)
    bomb = BOMBS["patterns that all must match"]
    future = made.compile(bomb)
    for child in next_children(made, 2):
        assert not future.done()
        os.kill(child, signal.SIGKILL)
    with pytest.raises(EngineError, match="process"):
        future.result(300)
    assert not made.compile(bomb).done()  # it is not remembered as refused
    made.close()


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar(kind="json_schema", source='{"type": "object",}'), "line 1, column 19"),
        (Grammar(kind="json_schema", source="[1]"), r"must be a JSON object, got \[1\]"),
        (Grammar(kind="json_schema", source="false"), "no value validates"),
        (Grammar(kind="json_schema", source='{"const": NaN}'), "NaN is not JSON"),
        (Grammar(kind="json_schema", source='{"not":' * 70 + "{}" + "}" * 70), "nested deeper than 64"),
        (Grammar(kind="json_schema", source="[" * 200_000), "nested deeper than 64"),
        (Grammar(kind="json_schema", source='{"type":"array","uniqueItems":true}'), r"uniqueItems"),
        (Grammar(kind="json_schema", source='{"type":"a"}'), 'type can\'t be "a" at #'),
        (Grammar(kind="json_object", source="{}"), "has no source"),
        (Grammar(kind="choice", source="[]"), "one or more texts"),
        (Grammar(kind="choice", source='["a", ""]'), "none of them empty"),
        (Grammar(kind="choice", source='["a", 3]'), "one or more texts"),
        (Grammar(kind="choice", source='["\\ud800"]'), "surrogate"),
        (Grammar(kind="json_schema", source=f'{{"minimum": {"9" * 5000}}}'), "an integer of more than 4300 digits"),
        (Grammar(kind="regex", source=" "), "must not be empty"),
        (Grammar(kind="regex", source="a\0"), "NUL"),
        (Grammar(kind="regex", source="a\\"), "backslash"),
        (Grammar(kind="regex", source="a|\\\\\\"), "backslash"),
        (Grammar(kind="json_schema", source=r'{"type": "string", "pattern": "a\\"}'), "pattern"),
        (Grammar(kind="regex", source="(a"), "regex"),
        (Grammar(kind="regex", source="a(?=b)b"), "look"),
        (Grammar(kind="ebnf", source="start ::= x"), "root"),
        (Grammar(kind="ebnf", source="root ::= x"), '"x" is not defined'),
        (Grammar(kind="lark", source="start: foo"), "foo"),
        (Grammar(kind="structural_tag", source="[]"), "must be a JSON object"),
        (Grammar(kind="structural_tag", source="{}"), '"format"'),
        (Grammar(kind="structural_tag", source='{"structures": [{"begin": "<a>"}]}'), "triggers"),
        (Grammar(kind="structural_tag", source='{"format": {"type": "nope"}}'), "nope"),
        (tag({"type": "triggered_tags"}), "shape.*triggers"),
        (tag({"type": "triggered_tags", "triggers": ["<"], "tags": ["x"]}), "shape"),
        (tag({"type": "triggered_tags", "triggers": 5, "tags": [{"begin": "<", "content": {}}]}), "not supported"),
        (tag({"type": "triggered_tags", "triggers": ["<"], "tags": [{"begin": "<", "content": 5}]}), "shape"),
        (tag({"type": "triggered_tags", "triggers": [["<"]], "tags": 5}), "shape"),
        (tag({"type": {}, "triggers": None}), "not supported"),
        (schema({"oneOf": 5, "properties": 5, "required": [[]], "type": 7}), "not supported"),
        (schema({"allOf": 5}), "allOf can't be 5 at #"),
    ],
)
def test_what_is_wrong_is_said(service: Grammars, grammar: Grammar, message: str):
    with pytest.raises(ParameterError, match=message) as caught:
        service.compile(grammar).result(300)
    assert caught.value.param == "grammar"
    assert "<state>" not in str(caught.value)


@pytest.mark.long
def test_closing_ends_what_is_being_compiled_and_leaves_nothing():
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    made = grammars(GrammarConfig(timeout_s=60, memory_mib=4096, workers=2))
    made.compile(number(0)).result(300)
    running = [
        made.compile(BOMBS["patterns that all must match"]),
        made.compile(BOMBS["patterns that all must match"]),
        made.compile(number(3)),
    ]
    made.fill([]).wait()
    time.sleep(0.2)
    pids = made.pids
    made.close()
    for future in running:
        outcome = future.exception(0)
        assert outcome is None or isinstance(outcome, (EngineError, ParameterError))
    assert any(isinstance(future.exception(0), EngineError) for future in running)
    with pytest.raises(EngineError, match="shut down"):
        made.compile(number(4)).result(0)
    made.close()
    assert not any(map(alive, pids))
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= files


def stop_child(made: Grammars, user: str = "") -> Future[Compiled]:
    """Compile a grammar that takes long, and stop its child."""
    made.compile(number(0), user).result(300)  # the process runs
    future = made.compile(BOMBS["patterns that all must match"], user)
    [child] = next_children(made, 1)
    os.kill(child, signal.SIGSTOP)
    return future


@pytest.mark.long
def test_one_that_takes_long_keeps_no_other_waiting():
    made = grammars(GrammarConfig(timeout_s=60, memory_mib=1024))
    slow = stop_child(made)
    for i in range(4):
        assert made.compile(number(10 + i)).result(300).matcher().prefix(b"x") == 1
    assert not slow.done()
    assert len(made.pids) == 2
    made.close()


@pytest.mark.long
def test_a_grammar_that_takes_too_much_costs_no_start_of_a_process(service: Grammars):
    service.compile(number(20)).result(300)
    [process] = service.pids
    bomb = schema(
        {"allOf": [{"pattern": f"[cd]*c[cd]{{{i}}}$"} for i in range(100)]}
    )  # no other test's: it is remembered
    with pytest.raises(ParameterError, match="to compile"):
        service.compile(bomb).result(300)
    service.compile(number(21)).result(300)
    assert service.pids == [process]


@pytest.mark.long
def test_closing_an_idle_one_leaves_nothing():
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with_masks = grammars()
    compiled = with_masks.compile(number(0)).result(300)
    with_masks.fill([BitmaskJob(compiled.matcher(), [], torch.zeros((1, WORDS), dtype=torch.int32))]).wait()
    pids = with_masks.pids
    assert pids
    assert all(map(alive, pids))
    with_masks.close()
    assert with_masks.pids == []
    assert not any(map(alive, pids))
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= files


def test_the_least_used_leaves_the_cache():
    cache, compiled = UserCache[Future[Compiled]](max_entries=3, max_bytes=100), Future[Compiled]()
    for key, size in ((b"a", 10), (b"b", 10), (b"c", 10)):
        cache.put(key, compiled, size, "")
    assert cache.get(b"a") is not None
    cache.put(b"d", compiled, 10, "")
    assert [cache.get(key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    cache.put(b"e", compiled, 85, "")
    assert [cache.get(key) is not None for key in (b"a", b"c", b"d", b"e")] == [False, False, True, True]


def test_masks_of_many_with_drafts(service: Grammars):
    compiled = service.compile(Grammar(kind="regex", source="(ab|cd)+[0-9]")).result(300)
    drafts = [b"", b"a", b"abc", b"abcdab", b"ab5"] * 4
    matchers = [compiled.matcher() for _ in drafts]
    masks = [torch.full((len(d) + 1, WORDS), -1, dtype=torch.int32) for d in drafts]
    jobs = [BitmaskJob(m, list(d), mask) for m, d, mask in zip(matchers, drafts, masks, strict=True)]
    assert service.fill(jobs).wait() == [None] * len(jobs)
    for matcher, draft, mask in zip(matchers, drafts, masks, strict=True):
        alone, row = compiled.matcher(), torch.zeros(WORDS, dtype=torch.int32)
        for j in range(len(draft) + 1):
            alone.fill(row)
            assert torch.equal(mask[j], row)
            assert j == len(draft) or alone.accept(draft[j])
        matcher.fill(row)
        assert torch.equal(row, masks[0][0])


def test_masks_in_one_piece_of_memory_with_rows_of_others_between(service: Grammars):
    """Together and one by one the same, wherever the rows lie; an end that was reached, too."""
    compiled = service.compile(Grammar(kind="regex", source="(ab|cd)+[0-9]")).result(300)
    drafts = [[*b"ab"], [], [*b"abc"], [*b"ab5", *EOS], [], [*b"b7"]]
    after = [[], [*b"ab"], [*b"cd"], [], [*b"ab5", EOS[1]], [*b"a"]]
    memory = torch.full((40 * WORDS + 3,), 5, dtype=torch.int32)
    jobs, at = [], 3
    for said, draft in zip(after, drafts, strict=True):
        matcher = compiled.matcher()
        assert all(matcher.accept(token) for token in said)
        rows = len(draft) + 1
        jobs.append(BitmaskJob(matcher, draft, memory[at : at + rows * WORDS].view(rows, WORDS)))
        at += (rows + 1) * WORDS  # a row between that is nobody's
    expected = []
    for job in jobs:
        expected.append(torch.zeros_like(job.masks))
        bitmasks.fill_job(BitmaskJob(job.matcher, job.drafts, expected[-1]), 9.0)
    assert [len(group) for group in bitmasks.group_jobs(jobs)] == [4, 1, 1]  # those that know of the end are alone
    assert service.fill(jobs).wait() == [None] * len(jobs)
    for job, mask in zip(jobs, expected, strict=True):
        assert torch.equal(job.masks, mask)
    used = sum(job.masks.numel() for job in jobs)
    assert int((memory == 5).sum()) == memory.numel() - used


def test_putting_jobs_into_groups_is_no_work_for_the_library(service: Grammars, monkeypatch: pytest.MonkeyPatch):
    """It happens on the engine's thread."""
    compiled = service.compile(number(7)).result(300)
    jobs = [BitmaskJob(compiled.matcher(), [], torch.zeros((1, WORDS), dtype=torch.int32)) for _ in range(3)]
    kind = type(jobs[0].matcher)
    for name in ("_is_complete", "_only_end", "_write_mask", "_take_token"):
        monkeypatch.setattr(kind, name, lambda *_: pytest.fail("asked"))
    assert bitmasks.group_jobs(jobs) == [[0, 1, 2]]


def test_where_filling_together_fails_each_is_filled_alone(service: Grammars, monkeypatch: pytest.MonkeyPatch):
    compiled = service.compile(number(7)).result(300)
    jobs = [
        BitmaskJob(compiled.matcher(), list(d), torch.zeros((len(d) + 1, WORDS), dtype=torch.int32))
        for d in (b"x", b"", b"q")
    ]

    class PanicException(BaseException):
        pass

    def panic(jobs, threads):
        raise PanicException("in Rust")

    monkeypatch.setattr(type(jobs[0].matcher), "fill_together", staticmethod(panic))
    first, second, third = service.fill(jobs).wait()
    assert first is second is None
    assert isinstance(third, ValueError)


def test_a_job_that_fails_fails_alone(service: Grammars):
    compiled = service.compile(number(7)).result(300)

    class Broken:
        def fill(self, mask: torch.Tensor) -> None:
            raise RowError("broken")

    def job(matcher, drafts: bytes) -> BitmaskJob:
        return BitmaskJob(matcher, list(drafts), torch.zeros((len(drafts) + 1, WORDS), dtype=torch.int32))

    jobs = [
        job(compiled.matcher(), b"x7"),
        job(Broken(), b""),
        job(compiled.matcher(), b"xq"),
        job(compiled.matcher(), b""),
    ]
    first, second, third, fourth = service.fill(jobs).wait()
    assert first is None
    assert isinstance(second, RowError)
    assert isinstance(third, ValueError)
    assert "draft 1 " in str(third)
    assert fourth is None
    assert jobs[0].masks.any(dim=1).all()


def test_a_job_that_panics_fails_alone_and_none_fails_by_a_clock(service: Grammars):
    compiled = service.compile(number(7)).result(300)

    class Slow:  # the thread collects garbage, or the kernel looks for memory: no work of the grammar
        def fill(self, mask: torch.Tensor) -> None:
            end = time.thread_time() + 0.06
            while time.thread_time() < end:
                pass

    class Waiting:
        def fill(self, mask: torch.Tensor) -> None:
            time.sleep(0.1)

    class PanicException(BaseException):
        pass

    class Panicking:
        def fill(self, mask: torch.Tensor) -> None:
            raise PanicException("in Rust")

    matchers = [Slow(), Panicking(), Waiting(), compiled.matcher()]
    jobs = [BitmaskJob(m, [], torch.zeros((1, WORDS), dtype=torch.int32)) for m in matchers]  # type: ignore[arg-type]
    slow, panicking, waiting, plain = service.fill(jobs).wait()
    assert isinstance(panicking, RowError)
    assert "PanicException" in str(panicking)
    assert slow is waiting is plain is None


def test_guesses_whose_masks_take_too_long_are_given_up_and_nothing_fails(service: Grammars):
    """Otherwise the masks would be filled one per step, each within its own limit."""
    compiled = service.compile(number(7)).result(300)

    class Slow:
        def __init__(self, at: int = 0, error: GrammarError | None = None) -> None:
            self.at, self.error = at, error

        def fork(self) -> Slow:
            return Slow(self.at, self.error)

        def accept(self, token: int) -> bool:
            self.at += 1
            return True

        def fill(self, mask: torch.Tensor) -> None:
            if self.at == 2 and self.error is not None:
                raise self.error
            mask.fill_(self.at + 1)
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass

    matchers = [Slow(), Slow(error=DeadEndError("behind a guess")), compiled.matcher()]
    drafts = [[1] * 9, [1] * 2, [*b"x7"]]
    jobs = [
        BitmaskJob(m, d, torch.zeros((len(d) + 1, WORDS), dtype=torch.int32))
        for m, d in zip(matchers, drafts, strict=True)
    ]  # type: ignore[arg-type]
    slow, ending, plain = service.fill(jobs).wait()
    assert isinstance(slow, DraftMaskError)
    assert 1 <= slow.known <= 3
    assert all((jobs[0].masks[row] == row + 1).all() for row in range(slow.known))
    assert isinstance(ending, DraftMaskError)
    assert 1 <= ending.known <= 2
    assert plain is None


def test_masks_of_an_ambiguous_gbnf_are_quick(service: Grammars):
    grammar = Grammar(kind="ebnf", source='root ::= x*\nx ::= y*\ny ::= ("a"*)*')
    matcher = service.compile(grammar).result(300).matcher()
    mask, begun = torch.zeros(WORDS, dtype=torch.int32), time.thread_time()
    for _ in range(30):
        matcher.fill(mask)
        assert matcher.accept(ord("a"))
    assert time.thread_time() - begun < 1.0


def test_the_line_of_grammars_is_bounded_and_can_be_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_pool, "MAX_WAITING", 3)
    monkeypatch.setattr(compile_process, "SLICE_S", 1e5)  # nothing leaves the fast lane
    service = grammars()
    running = stop_child(service)  # a user has one place here
    waiting = [service.compile(number(201 + i)) for i in range(3)]
    with pytest.raises(OverloadedError):
        service.compile(number(210)).result(0)
    again = service.compile(number(201))  # two wait for the same: it stays when one leaves
    service.forget(waiting[0])
    service.forget(waiting[1])
    for future in waiting[:2]:
        with pytest.raises(EngineError, match="no request waits"):
            future.result(0)
    assert not again.done()
    service.forget(waiting[1])
    more = service.compile(number(202))  # there is room again, and a dropped one may come back
    with pytest.raises(OverloadedError):
        service.compile(number(210)).result(0)
    [_, child] = service.pids
    os.kill(child, signal.SIGCONT)
    for future in (again, waiting[2], more):
        assert future.result(300).matcher().prefix(b"x2") == 2
    service.forget(running)
    assert running.exception(0) is not None
    service.close()


def test_a_slow_grammar_that_nobody_wants_any_more_is_stopped():
    service = grammars(GrammarConfig(timeout_s=60, memory_mib=8192, workers=1))
    bomb = BOMBS["patterns that all must match"]
    future = service.compile(bomb)
    until(lambda: any(job.slow for job in service._pool._jobs.values()))
    service.forget(future)
    until(lambda: not service._pool._jobs)
    assert not service.compile(bomb).done()  # it is not remembered as refused
    service.close()


def test_two_users_do_not_fill_the_slow_lane():
    """A third user's slow grammar runs beside those of two others."""
    service = grammars(GrammarConfig(timeout_s=60, memory_mib=8192, workers=2))
    for user in "abc":
        service.compile(BOMBS["patterns that all must match"], user, user.encode())
    jobs = service._pool._jobs
    until(lambda: {job.payer for job in list(jobs.values()) if job.slow} == set("abc"))
    service.close()


def test_time_that_a_grammar_does_not_get_is_not_counted():
    """Only its own processor time counts, however long it is kept from running."""
    service = grammars(GrammarConfig(timeout_s=1.0, memory_mib=8192, workers=1))
    future = stop_child(service)
    time.sleep(3)
    assert not future.done()
    [_, child] = service.pids
    os.kill(child, signal.SIGCONT)
    with pytest.raises(ParameterError, match="takes longer than 1 s"):
        future.result(300)
    service.close()


def test_a_grammar_that_gets_no_time_at_all_ends_and_is_not_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_process, "STARVED", 1)
    service = grammars(GrammarConfig(timeout_s=1.0, memory_mib=8192, workers=1))
    future = stop_child(service)
    with pytest.raises(MachineBusyError, match="too busy"):
        future.result(300)
    assert not service.compile(BOMBS["patterns that all must match"]).done()
    service.close()


def test_grammars_are_found_under_their_salt_alone(service: Grammars):
    """Neither a compiled grammar nor one that is being compiled is found under another salt."""
    salts = (b"", b"a", b"b")
    compiled = [future.result(300) for future in [service.compile(number(500), "u", salt) for salt in salts]]
    assert len(set(map(id, compiled))) == 3
    assert [service.compile(number(500), "v", salt).result(0) for salt in salts] == compiled
    assert service.compile(number(500), "u", b"c").result(300) not in compiled


def test_a_refusal_is_remembered_under_its_salt_alone():
    made = grammars(GrammarConfig(timeout_s=0.3, memory_mib=8192))
    bomb = BOMBS["patterns that all must match"]
    with pytest.raises(ParameterError, match="takes longer than"):
        made.compile(bomb, "a", b"a").result(300)
    assert made.compile(bomb, "a", b"a").done()
    assert not made.compile(bomb, "b", b"b").done()
    made.close()


@pytest.mark.parametrize(("limits", "size"), [((8, 10**6), 10), ((100, 80), 10)])
def test_a_user_within_an_equal_part_of_the_cache_loses_nothing(limits: tuple[int, int], size: int):
    cache, compiled = UserCache[Future[Compiled]](*limits), Future[Compiled]()
    for i in range(4):
        cache.put(b"b%d" % i, compiled, size, "b")
    for i in range(50):
        cache.put(b"a%d" % i, compiled, size, "a")
    assert [cache.get(b"b%d" % i) is compiled for i in range(4)] == [True] * 4
    assert [cache.get(b"a%d" % i) is compiled for i in (45, 46, 49)] == [False, True, True]


def test_a_user_does_not_push_out_another_users_refusals():
    refusals = RefusedGrammars(4, 60.0)
    for key, user in ((b"1", "b"), (b"2", "b"), *((b"a%d" % i, "a") for i in range(9))):
        refusals.put(key, "too much", user)
    assert [refusals.get(key) for key in (b"1", b"2", b"a6", b"a8")] == ["too much", "too much", None, "too much"]


def test_a_user_that_fills_the_line_is_refused_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_pool, "MAX_WAITING", 3)
    monkeypatch.setattr(compile_process, "SLICE_S", 1e5)  # nothing leaves the fast lane
    service = grammars()
    running = stop_child(service, "a")
    mine = [service.compile(number(201 + i), "a") for i in range(4)]
    with pytest.raises(OverloadedError):
        mine[3].result(0)
    for i in range(9):  # one after the other
        assert service.compile(number(300 + i), "b").result(300).matcher().prefix(b"x3") == 2
    assert not running.done()
    refused = [future for future in mine[:3] if future.done()]  # B's first may have waited for an instant
    assert refused in ([], [mine[2]])
    service.close()


@pytest.mark.long
def test_a_bomb_that_comes_again_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    made = grammars(GrammarConfig(timeout_s=0.3, memory_mib=1024))
    bomb = BOMBS["patterns that all must match"]
    with pytest.raises(ParameterError, match="takes longer than"):
        made.compile(bomb).result(300)
    again = made.compile(bomb)
    with pytest.raises(ParameterError, match="takes longer than"):
        again.result(0)
    made.close()
    now = [0.0]
    monkeypatch.setattr(grammar_cache.time, "monotonic", lambda: now[0])
    refusals = RefusedGrammars(2, 60.0)
    for key in (b"a", b"b", b"c"):
        refusals.put(key, "too much", "")
    assert [refusals.get(key) for key in (b"a", b"b", b"c")] == [None, "too much", "too much"]
    now[0] = 61.0
    assert refusals.get(b"c") is None


LONG_ANSWER = (
    "import socket; control = socket.socket(fileno=0)\n"
    "def carried(): return socket.socket(fileno=socket.recv_fds(control, 99, 1)[1][0])\n"
    "hello = carried()\nwhile hello.recv(9999): pass\n"
    "job = carried(); job.recv(9); job.sendall(b'\\xff' * 4); control.recv(9)"
)
# what a process does instead of compiling → what is said
BAD = {
    "raise SystemExit(1)": (EngineError, "could not be started: its process ended"),
    "import time; time.sleep(60)": (EngineError, "could not be started: its process did not answer"),
    LONG_ANSWER: (ParameterError, "too big"),
}


@pytest.mark.parametrize("code", BAD)
def test_a_process_that_does_not_work_is_our_fault(monkeypatch: pytest.MonkeyPatch, code: str):
    monkeypatch.setattr(compile_process, "START_S", 1.0)
    plain = subprocess.Popen
    monkeypatch.setattr(
        compile_process.subprocess, "Popen", lambda command, **more: plain([sys.executable, "-c", code], **more)
    )
    # more than a pipe holds
    made = Grammars(CONFIG, None, [*spelled(), *(b"%032d" % i for i in range(10_000))], SPECIAL, EOS, 20_000)
    kind, text = BAD[code]
    future = made.compile(number(0))
    with pytest.raises(kind, match=text):
        future.result(20)
    made.close()


def test_a_panic_while_loading_fails_that_grammar_alone(service: Grammars, monkeypatch: pytest.MonkeyPatch):
    class PanicException(BaseException):
        pass

    def panic(self: object, compiled: str) -> Compiled:
        raise PanicException("in Rust")

    service.compile(number(1)).result(300)
    with monkeypatch.context() as patched:
        patched.setattr(type(service._pool.get_compiler()), "load", panic)
        with pytest.raises(EngineError, match="PanicException"):
            service.compile(number(300)).result(300)
    assert service.compile(number(300)).result(300).matcher().prefix(b"x3004") == 5


@pytest.mark.long
def test_no_process_outlives_an_engine_that_just_exits():
    code = """if True:
        import os, time
        from grammar.test_service import BOMBS, GrammarConfig, grammars, number
        made = grammars(GrammarConfig(timeout_s=60, memory_mib=8192))
        made.compile(number(0)).result(300)
        made.compile(BOMBS["patterns that all must match"])
        while len(made.pids) < 2:
            time.sleep(0.01)
        print(*made.pids, flush=True)
        os._exit(0)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="tests", timeout=300)
    process, child = map(int, done.stdout.split())
    until(lambda: not running(process) and not running(child))


def running(pid: int) -> bool:
    """A process that has ended may still stand in the table, where nobody asks for it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_warming_up_makes_the_library_ready(monkeypatch: pytest.MonkeyPatch):
    made = grammars()
    made.warm_up()
    until(lambda: made._pool._library is not None and made._pool._library.done())
    made.close()
    assert not any(thread.name == "grammar-warming" for thread in threading.enumerate())
    made.warm_up()
    # what goes wrong is only logged
    failing = grammars()
    monkeypatch.setattr(compile_pool, "load_compiler", lambda *_: 1 / 0)
    failing.warm_up()
    failing.close()
    assert failing._pool._library is None


def test_what_a_grammar_may_grow_by_is_charged(service: Grammars):
    """llguidance finds states of its lexer as texts are matched, after the grammar was weighed."""
    service.compile(number(400)).result(300)
    size = service._cache._entries[hash_grammar(number(400))][1]
    assert size >= 16 << 20


def test_nothing_is_copied_where_there_is_nothing_to_try(service: Grammars, monkeypatch: pytest.MonkeyPatch):
    matcher = service.compile(Grammar(kind="regex", source="[ab]+")).result(300).matcher()
    monkeypatch.setattr(GrammarMatcher, "fork", None)
    assert matcher.prefix([]) == 0


def test_a_vocabulary_needs_an_end():
    for eos in ([], [PADDED], [-1]):
        with pytest.raises(ValueError, match="EOS ids in"):
            Grammars(CONFIG, None, spelled(), SPECIAL, eos, PADDED)
    assert small().eos == EOS
