"""One contract for the three clients: in-process, blocking and asyncio over ZMQ."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.errors import ConfigError, EngineDeadError, ModelLoadError
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.params import SamplingParams
from tailrace.runners.scripted import make_scripted
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.in_process_client import InProcessClient
from tailrace.wire.messages import Failed, Finished, ModelInfo, Replay, Tokens
from tailrace.wire.sync_client import SyncClient

VOCAB = 49152


def config(model: str = "scripted:count:1", **scheduler: int) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=model), cache=CacheConfig(num_blocks=256), scheduler=SchedulerConfig(**scheduler)
    )


async def test_start_that_fails_leaves_no_process_and_no_folder(tmp_path, monkeypatch):
    def fail(url: str) -> None:
        launched.append(url)
        raise OSError(24, "Too many open files")

    launched: list[str] = []
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    client = AsyncClient(config())
    client.on_launched = fail
    with pytest.raises(OSError, match="Too many open files"):
        await client.start()
    assert launched
    assert client._process.wait(0)
    assert not Path(launched[0].removeprefix("ipc://")).parent.exists()


@pytest.mark.parametrize(
    ("script", "says"),
    [("exit 3", "exit code 3"), ("kill -9 $$", "signal 9"), ("exec sleep 600", "not ready within 0.5 s")],
)
async def test_start_ends_however_the_process_does(tmp_path, monkeypatch, script: str, says: str):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o700)
    monkeypatch.setattr("tailrace.base.python_command.sys.executable", str(python))
    with pytest.raises(EngineDeadError, match=says):
        await AsyncClient(config(), start_timeout_s=0.5 if "sleep" in script else 300).start()


async def test_engine_that_can_not_be_watched_is_lost(monkeypatch):
    def fail(timeout_s: float | None = None) -> bool:
        raise RuntimeError("can't start new thread")

    client = AsyncClient(config())
    await client.start()
    with monkeypatch.context() as broken:
        broken.setattr(client._process, "wait", fail)
        await asyncio.wait_for(client.died.wait(), 300)
    assert "can't be watched: can't start new thread" in str(client.error)
    await client.close()


class Blocking:
    """The asyncio client with a blocking face, so that one contract serves all three."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def start(self) -> ModelInfo:
        return self.call(self.client.start())

    def submit(self, *args: Any, **options: Any) -> BlockingStream:
        async def work():
            return self.client.submit(*args, **options)

        return BlockingStream(self, self.call(work()))

    @property
    def stats(self):
        return self.client.stats

    @property
    def error(self):
        return self.client.error

    def drain(self, timeout_s: float) -> bool:
        return self.call(self.client.drain(timeout_s))

    def close(self) -> None:
        self.call(self.client.close())

    def end(self) -> None:
        self.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class BlockingStream:
    def __init__(self, owner: Blocking, stream: Any) -> None:
        self.owner, self.stream, self.id, self.epoch = owner, stream, stream.id, stream.epoch

    def __iter__(self) -> Iterator[list]:
        events = self.stream.__aiter__()

        async def following() -> list:
            return await events.__anext__()  # begun in the loop, so that the loop also finalises it

        while True:
            try:
                yield self.owner.call(following())
            except StopAsyncIteration:
                return

    def _in_loop(self, call: Callable, *args: Any) -> None:
        async def work():
            call(*args)

        self.owner.call(work())

    def abort(self, cause: str = "client") -> None:
        self._in_loop(self.stream.abort, cause)

    def close(self) -> None:
        self._in_loop(self.stream.close)

    def abort_sequence(self, index: int) -> None:
        self._in_loop(self.stream.abort_sequence, index)

    def __enter__(self) -> BlockingStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.abort()


def inproc() -> InProcessClient:
    settings = config()
    runner = make_scripted("scripted:count:1", VOCAB, 16)
    return InProcessClient(Engine(runner, ModelInfo("scripted", VOCAB, 4096, [2]), settings.cache, settings.scheduler))


MAKERS: dict[str, Callable[[], Any]] = {
    "in process": inproc,
    "blocking": lambda: SyncClient(config()),
    "asyncio": lambda: Blocking(AsyncClient(config())),
}


@pytest.fixture(scope="module", params=MAKERS)
def client(request: pytest.FixtureRequest):
    made = MAKERS[request.param]()
    info = made.start()
    assert (info.vocab_size, info.eos_token_ids) == (VOCAB, [2])
    yield made
    (made.end if isinstance(made, Blocking) else made.close)()


def greedy(max_tokens: int = 5, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **fields)


def tell(stream: Any) -> tuple[dict[int, list[int]], dict[int, Any]]:
    tokens: dict[int, list[int]] = {}
    ends: dict[int, Any] = {}
    for events in stream:
        assert events
        for event in events:
            assert event.index not in ends
            if isinstance(event, Tokens):
                tokens.setdefault(event.index, []).extend(event.token_ids)
            else:
                ends[event.index] = event
    return tokens, ends


def settle(client: Any, steps: int = 1) -> None:
    """Wait until the engine says, after so many steps, that nothing is left."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        stats = client.stats
        if (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0) and stats.steps >= steps:
            return
        time.sleep(0.05)
    raise AssertionError(client.stats)


@pytest.mark.few(1)
def test_a_request_gets_its_tokens_and_one_end(client):
    tokens, ends = tell(client.submit([10], greedy()))
    assert tokens == {0: [11, 12, 13, 14, 15]}
    assert ends[0].reason == "length"


@pytest.mark.few(1)
def test_records_of_why_tokens_came_arrive_with_them_and_afterwards(client):
    params = greedy(explain=ExplainOptions(top=2))
    events = [event for batch in client.submit([10], params) for event in batch]
    live = [record for event in events if isinstance(event, Tokens) for record in event.explanations or ()]
    assert [record.token_id for record in live] == [11, 12, 13, 14, 15]
    assert all(isinstance(record, Explanation) for record in live)
    [key] = {event.key for event in events if isinstance(event, Tokens) and event.key is not None}
    replay = Replay([11, 12, 13, 14, 15], [0, 4], ExplainOptions(top=2), key=key)
    found = [event for batch in client.submit([10], greedy(), replay=replay) for event in batch]
    assert [record for event in found[:-1] for record in event.records] == [live[0], live[4]]
    assert all(event.difference is None for event in found[:-1])
    assert isinstance(found[-1], Finished)


def test_several_sequences_each_end_once(client):
    tokens, ends = tell(client.submit([10, 20], greedy(n=3)))
    assert tokens == {i: [21, 22, 23, 24, 25] for i in range(3)}
    assert sorted(ends) == [0, 1, 2]


def test_many_streams_at_once(client):
    streams = [client.submit([100 * i], greedy(8)) for i in range(1, 20)]
    for i, stream in reversed(list(enumerate(streams, 1))):
        assert tell(stream)[0] == {0: [100 * i + k for k in range(1, 9)]}
    settle(client)


def test_a_refused_request_is_told_why(client):
    _, ends = tell(client.submit([VOCAB + 1], greedy()))
    assert isinstance(ends[0], Failed)
    assert (ends[0].code, ends[0].param) == ("invalid_value", "prompt")


@pytest.mark.parametrize("after", [0, 1, 3])
def test_after_an_abort_nothing_comes_and_nothing_is_left(client, after):
    stream = client.submit([10], greedy(3000))
    events = iter(stream)
    for _ in range(after):
        next(events)
    stream.abort()
    assert list(events) == []
    stream.abort()  # again: nothing happens
    settle(client)


def test_leaving_early_aborts(client):
    with client.submit([10], greedy(3000, n=2)) as stream:
        next(iter(stream))
    settle(client)


def begun(client: Any, n: int = 2) -> Any:
    stream = client.submit([10], greedy(3000, n=n))
    for _ in stream:
        break
    return stream


def broken_off(client: Any) -> None:
    begun(client)


def broken_off_and_kept(client: Any) -> None:
    KEPT.append(begun(client))


def closed_before_its_first_token(client: Any) -> None:
    with contextlib.closing(client.submit([10], greedy(3000))) as stream:
        KEPT.append(stream)


def never_read(client: Any) -> None:
    client.submit([10], greedy(3000))


def collected_in_a_cycle(client: Any) -> None:
    holder: list[Any] = [client.submit([10], greedy(3000))]
    holder.append(holder)
    del holder
    gc.collect()


def collected_by_another_thread(client: Any) -> None:
    holder = [client.submit([10], greedy(3000))]
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()


class Holder:
    """Has a stream, and is told when too much of it waits: as the front end's requests are."""

    def __init__(self, client: Any) -> None:
        self.stream = client.submit([10], greedy(3000))
        if isinstance(self.stream, BlockingStream):
            self.stream.stream.set_limit(1 << 20, self.full)

    def full(self) -> None:
        raise AssertionError("nobody is there to be told")


def held_by_whom_it_tells(client: Any) -> None:
    Holder(client)
    gc.collect()


KEPT: list[Any] = []
ABANDONED = [
    broken_off,
    broken_off_and_kept,
    closed_before_its_first_token,
    never_read,
    collected_in_a_cycle,
    held_by_whom_it_tells,
    collected_by_another_thread,
]


@pytest.mark.few(3)
@pytest.mark.parametrize("leave", ABANDONED, ids=lambda leave: leave.__name__)
def test_an_abandoned_stream_gives_back_its_slots_and_blocks(client, leave):
    """Fewer steps than its 3,000 tokens would take say that nobody waited for its end."""
    before = client.stats.steps
    leave(client)
    tokens, _ = tell(client.submit([20], greedy(3)))
    assert tokens == {0: [21, 22, 23]}
    settle(client, before + 3)
    assert client.stats.steps - before < 2000


def test_a_stream_collected_while_the_engine_is_at_work_ends_after_it():
    made = inproc()
    streams = [made.submit([10], greedy(3000)), made.submit([20], greedy(6))]
    step = made._engine.step

    def collecting():
        if len(streams) == 2 and made.stats.steps == 3:
            streams.pop(0)  # its abort must not reach an engine in mid-step
            assert made.stats.running == 2
        return step()

    made._engine.step = collecting
    assert tell(streams[-1])[0] == {0: list(range(21, 27))}
    settle(made)


def test_one_sequence_can_be_ended_alone(client):
    stream = client.submit([10], greedy(6, n=3))
    pieces = iter(stream)
    first = next(pieces)
    stream.abort_sequence(1)
    tokens, ends = tell(pieces)
    assert sorted(ends) == [0, 2]
    before = [i for event in first if event.index == 0 for i in event.token_ids]
    assert before + tokens[0] == [11, 12, 13, 14, 15, 16]
    settle(client)


def test_an_id_used_again_at_once_gets_its_own_output(client):
    for round in range(10):
        stream = client.submit([1000 * round], greedy(500), id="same")
        next(iter(stream))
        stream.abort()
    tokens, _ = tell(client.submit([5], greedy(4), id="same"))
    assert tokens == {0: [6, 7, 8, 9]}
    settle(client)


def test_a_slow_reader_gets_everything_in_fewer_pieces(client):
    stream = client.submit([10], greedy(40))
    events = iter(stream)
    pieces = [next(events)]
    time.sleep(0.3)
    pieces += list(events)
    tokens = [i for piece in pieces for event in piece if isinstance(event, Tokens) for i in event.token_ids]
    assert tokens == list(range(11, 51))


@pytest.mark.long
@pytest.mark.parametrize("name", ["blocking", "asyncio"])
def test_drain_finishes_what_runs_and_close_is_idempotent(name):
    made = MAKERS[name]()
    made.start()
    stream = made.submit([10], greedy(30))
    assert made.drain(20)
    tokens, ends = tell(stream)
    assert len(tokens[0]) == 30
    assert isinstance(ends[0], Finished)
    made.close()
    made.close()
    if isinstance(made, Blocking):
        made.end()


UNKNOWN = ("scripted:nothing", ConfigError, "no scripted model 'nothing'")
NOWHERE = ("/nowhere/at/all", ModelLoadError, "nowhere")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "model", "error", "words"),
    [
        ("blocking", *UNKNOWN),
        ("asyncio", *UNKNOWN),
        pytest.param("blocking", *NOWHERE, marks=pytest.mark.long),  # transformers is imported first
        pytest.param("asyncio", *NOWHERE, marks=pytest.mark.long),
    ],
)
def test_an_engine_that_can_not_start_says_why(name, model, error, words):
    made = SyncClient(config(model)) if name == "blocking" else Blocking(AsyncClient(config(model)))
    with pytest.raises(error, match=words):
        made.start()
    if isinstance(made, Blocking):
        made.end()
    _, ends = ({}, {}) if isinstance(made, Blocking) else tell(made.submit([1], greedy()))
    assert all(isinstance(end, Failed) and end.code == EngineDeadError.code for end in ends.values())
