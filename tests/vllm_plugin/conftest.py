"""For tests in this process."""

from __future__ import annotations

from collections.abc import Iterator

import crowd  # noqa: F401  (sets Triton's interpreter before a module imports Triton)
import pytest

from tailrace.integrations.vllm.fallbacks import fallbacks


@pytest.fixture(autouse=True)
def count_fallbacks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Counted are those of the test alone. No error in tailrace may hide behind vLLM's own sampler, unless the test
    plants one."""
    fallbacks.clear()
    yield
    errors = [reason for reason in fallbacks if reason.startswith("an error in tailrace's ")]
    assert not errors or request.node.get_closest_marker("planted") is not None
