"""Several async iterators as one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.api.merge_iterators import AT_ONCE, merge_iterators


async def numbers(source: int, count: int, naps: list[int]):
    for i in range(count):
        for _ in range(naps[i % len(naps)] if naps else 0):
            await asyncio.sleep(0)
        yield source, i


@given(st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 4), max_size=3)), min_size=1, max_size=6))
def test_everything_comes_once_and_in_its_sources_order(sources):
    async def run():
        return [
            item async for item in merge_iterators([numbers(s, count, naps) for s, (count, naps) in enumerate(sources)])
        ]

    by_source = defaultdict(list)
    for source, i in asyncio.run(run()):
        by_source[source].append(i)
    assert dict(by_source) == {s: list(range(count)) for s, (count, _) in enumerate(sources) if count}


async def waiting(ended: list[str]):
    try:
        yield "one"
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


async def failing():
    await asyncio.sleep(0.01)
    raise ValueError("x")
    yield


async def test_the_first_error_ends_the_others():
    ended: list[str] = []
    with pytest.raises(ValueError, match="x"):
        async for _ in merge_iterators([waiting(ended), failing(), waiting(ended)]):
            pass
    assert ended == ["ended", "ended"]


async def test_closing_early_ends_all():
    ended: list[str] = []
    merged = merge_iterators([waiting(ended), waiting(ended)])
    await anext(merged)
    await merged.aclose()
    assert ended  # those that had begun


async def test_sources_wait_while_nobody_asks():
    taken = []

    async def eager(name):
        for i in range(100):
            taken.append((name, i))
            yield i

    merged = merge_iterators([eager("a"), eager("b")])
    await anext(merged)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(taken) <= 6
    await merged.aclose()


async def test_many_begin_and_end_with_turns_of_others_between():
    begun = ended = 0
    seen: list[tuple[int, int]] = []

    async def beside() -> None:
        while True:
            seen.append((begun, ended))
            await asyncio.sleep(0)

    async def source():
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.sleep(60)
            yield 1
        finally:
            ended += 1

    watch = asyncio.create_task(beside())
    merged = merge_iterators([source() for _ in range(1000)])
    reading = asyncio.ensure_future(anext(merged))
    while begun < 1000:
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    watch.cancel()
    assert ended == 1000
    for which in (0, 1):
        steps = [one[which] for one in seen]
        assert max(b - a for a, b in pairwise(steps)) <= 2 * AT_ONCE


async def test_cancelled_twice_it_leaves_nobody_behind():
    async def source():
        await asyncio.sleep(60)
        yield 1

    before = len(asyncio.all_tasks())
    merged = merge_iterators([source() for _ in range(200)])
    reading = asyncio.ensure_future(anext(merged))
    while len(asyncio.all_tasks()) < before + 200:
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before
