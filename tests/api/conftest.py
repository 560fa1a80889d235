"""Fixtures of the API's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from api.field_world import make_grammars
from api.harness import Front, LocalClient, front_of, make_tokenizer, saying
from tailrace.grammar.service import Grammars
from tailrace.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def grammars(tokenizer) -> Iterator[Grammars]:
    """The grammars of an engine."""
    found = make_grammars(tokenizer)
    yield found
    found.close()


@pytest.fixture
async def front(tokenizer) -> AsyncIterator[Front]:
    """A front end whose model says "Hello" and stops."""
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        yield front


@pytest.fixture
async def leaps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Time of the event loop passes in leaps: whoever sleeps is woken at once, in the order of the times that they ask
    for, on a busy machine too. A turn takes a microsecond at least: who sleeps for less than the clock can tell would
    turn for ever. Its clock."""
    loop = asyncio.get_running_loop()
    select, now = loop._selector.select, [loop.time()]

    def leap(timeout: float | None) -> list:
        now[0] += max(timeout or 0.0, 1e-6)
        return select(None if timeout is None else 0)

    monkeypatch.setattr(loop, "time", lambda: now[0])
    monkeypatch.setattr(loop._selector, "select", leap)
    return loop.time


@pytest.fixture
def launch(tmp_path, free_port):
    """A function that runs a server as a process: with launch(settings) as process."""
    from api.processes import launched

    return lambda port=0, **server: launched(tmp_path, port or free_port(), **server)
