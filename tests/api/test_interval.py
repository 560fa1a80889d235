"""When what has come is given: by number, by time, never the first tokens or the end later than they come."""

from __future__ import annotations

import json

import pytest

from api.harness import LocalClient, endless, front_of
from tailrace.api import generation
from tailrace.config import ServerConfig
from tailrace.params import SamplingParams
from tailrace.wire import interval as module
from tailrace.wire.async_stream import AsyncStream
from tailrace.wire.interval import Interval
from tailrace.wire.messages import Finished, SequenceEvent, Submit, Tokens
from tailrace.wire.stream_table import OpenStream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def account(n: int = 1) -> OpenStream:
    return OpenStream("id", 1, set(range(n)), Submit("id", 1, [], SamplingParams()))


def take(interval: Interval, account: OpenStream) -> list[int]:
    """How many tokens of each event are given, if any are."""
    if not account.events or not interval.is_due(account):
        return []
    interval.record_delivery(account)
    return [len(event.token_ids) if isinstance(event, Tokens) else 0 for event in account.take()]


def tokens(count: int, index: int = 0) -> Tokens:
    return Tokens("id", 1, index, [5] * count)


def test_without_an_interval_all_is_given_at_once():
    interval, of = Interval(), account()
    for count in (1, 1, 3):
        of.add(tokens(count))
        assert take(interval, of) == [count]


def test_so_many_at_a_time_but_the_first_and_the_last(clock):
    interval, of, given = Interval(4), account(), []
    for _ in range(11):
        clock[0] += 100
        of.add(tokens(1))
        given += take(interval, of)
    assert given == [1, 4, 4]
    of.open.clear()
    of.add(Finished("id", 1, 0, "length"))
    assert take(interval, of) == [2, 0]


def test_one_sequence_that_has_enough_takes_the_others_along(clock):
    interval, of = Interval(3), account(2)
    of.add(tokens(1, 0))
    assert take(interval, of) == [1]
    of.add(tokens(1, 0))
    of.add(tokens(1, 1))  # its first
    assert take(interval, of) == [1, 1]
    of.add(tokens(2, 1))
    assert take(interval, of) == []
    of.add(tokens(3, 0))
    assert sorted(take(interval, of)) == [2, 3]


def test_by_the_clock_alone(clock):
    interval, of, given = Interval(1, 0.05), account(), []
    for _ in range(20):
        of.add(tokens(1))
        given += take(interval, of)
        clock[0] += 0.01
    assert given == [1, 5, 5, 5]
    assert interval.left_s == pytest.approx(0.0)


def test_whichever_comes_first(clock):
    interval, of = Interval(4, 0.05), account()
    of.add(tokens(1))
    assert take(interval, of) == [1]
    of.add(tokens(4))
    assert take(interval, of) == [4]
    of.add(tokens(1))
    assert take(interval, of) == []
    clock[0] += 0.051
    assert take(interval, of) == [1]


async def events_of(front, **fields) -> list[int]:
    """Tokens in each event of a stream."""
    answer = await front.complete(stream=True, max_tokens=40, ignore_eos=True, return_token_ids=True, **fields)
    assert answer.status_code == 200, answer.text
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return [
        len(choice.get("token_ids") or ()) for event in told for choice in event["choices"] if choice.get("token_ids")
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("of_server", [False, True])
async def test_a_stream_goes_at_the_interval_that_is_asked_for(tokenizer, of_server):
    config = ServerConfig(stream_interval=8) if of_server else ServerConfig()
    async with front_of(LocalClient(endless, tick_s=0.002), tokenizer, config) as front:
        counts = await events_of(front, **({} if of_server else {"stream_interval": 8}))
        assert sum(counts) == 40
        assert counts[0] < 8
        assert all(count >= 8 for count in counts[1:-1])
        assert len(await events_of(front, stream_interval=1)) > len(counts)
        whole = await front.complete(max_tokens=10, stream_interval=1000)
        assert whole.json()["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize(("stops", "few"), [({}, True), ({"stop": ["never"]}, False), ({"stop_regex": "never"}, False)])
async def test_a_whole_answer_is_read_some_tokens_at_a_time(tokenizer, monkeypatch, stops, few):
    reads: list[int] = []
    take_next = AsyncStream.next

    async def count_and_take(stream: AsyncStream) -> list[SequenceEvent]:
        events = await take_next(stream)
        reads.append(len(events))
        return events

    monkeypatch.setattr(AsyncStream, "next", count_and_take)
    monkeypatch.setattr(generation, "WHOLE_S", 3600.0)
    async with front_of(LocalClient(endless, tick_s=0.002), tokenizer) as front:
        answer = await front.complete(max_tokens=40, ignore_eos=True, **stops)
        assert answer.json()["usage"]["completion_tokens"] == 40
    assert (len(reads) <= 6) == few, reads


async def test_what_has_come_goes_out_when_it_is_time_though_nothing_more_comes(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.001), tokenizer) as front:
        front.client.hold = False
        stream = front.client.submit([1, 2], parameters(), id="x")
        stream.set_interval(1000, 0.05)
        first = await stream.next()
        assert first
        await front.until(lambda: bool(stream._open_stream.waiting))
        front.client.hold = True
        assert await stream.next()  # by the clock: there is no further event that could wake it
        stream.abort()


def parameters() -> SamplingParams:
    return SamplingParams(max_tokens=200, ignore_eos=True)


@pytest.mark.parametrize(
    "fields",
    [{"stream_interval": 0}, {"stream_interval": 1025}, {"stream_interval_ms": -1}, {"stream_interval_ms": 10_001}],
)
async def test_out_of_range(tokenizer, fields):
    async with front_of(LocalClient(endless), tokenizer) as front:
        answer = await front.complete(stream=True, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))
