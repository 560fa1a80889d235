"""What vLLM's own sampler has served, and why; in each process."""

from __future__ import annotations

import logging
from collections import Counter

log = logging.getLogger("vllm.tailrace")  # below vLLM's own logger, whose handlers print it
fallbacks: Counter[str] = Counter()  # by reason


class LeftToVllmError(Exception):
    """vLLM's own sampler must serve the whole batch; the message says why."""


def fall_back(reason: str) -> None:
    """Count a draw of vLLM's own sampler, and log the first of its kind."""
    fallbacks[reason] += 1
    if fallbacks[reason] == 1:
        log.warning("tailrace leaves these draws to vLLM's own sampler: %s", reason)
