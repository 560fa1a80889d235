"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from api.harness import Front, LocalClient, front_of, make_tokenizer, saying
from tailrace.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
async def front(tokenizer) -> AsyncIterator[Front]:
    """A front end whose model says "Hello" and stops."""
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        yield front


@pytest.fixture
def launch(tmp_path, free_port):
    """A function that runs a server as a process: with launch(settings) as process."""
    from api.processes import launched

    return lambda port=0, **server: launched(tmp_path, port or free_port(), **server)
