"""Panics of libraries that are written in Rust. pyo3 raises them as a BaseException of a class that can't be imported,
which `except Exception` lets pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tailrace.errors import TailraceError, describe_error


@contextmanager
def raise_panics_as(make_error: Callable[[str], TailraceError]) -> Iterator[None]:
    """Run the block. If a library panics, raise the error that `make_error` makes of the panic's first line."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise make_error(describe_error(error)) from error
