"""Which vLLM is here. What an older one lacks is skipped, and pytest says so."""

from __future__ import annotations

import pytest
import vllm
from packaging.version import Version

RELEASE = Version(vllm.__version__)


def since(release: str, why: str) -> pytest.MarkDecorator:
    """For this vLLM and newer ones."""
    return pytest.mark.skipif(Version(release) > RELEASE, reason=f"vLLM {RELEASE}: {why}")
