"""Errors that tests plant in tailrace, and their count."""

from __future__ import annotations

from typing import Any, NoReturn

from tailrace.integrations.vllm.fallbacks import fallbacks


def count_errors() -> int:
    """Return how many errors in tailrace vLLM has survived."""
    return sum(count for reason, count in fallbacks.items() if reason.startswith("an error in tailrace's "))


def make_failing(kind: type[BaseException] = RuntimeError) -> Any:
    """Return a function that raises an error of this kind, whatever its arguments are."""

    def planted(*args: Any, **more: Any) -> NoReturn:
        raise kind("planted")

    return planted
