"""For tests in this process."""

from __future__ import annotations

import pytest

from tailrace.integrations.vllm.fallbacks import fallbacks


@pytest.fixture(autouse=True)
def no_fallbacks() -> None:
    """Counted are those of the test alone."""
    fallbacks.clear()
