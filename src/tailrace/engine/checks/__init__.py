"""Per-sequence checks on generated text: each file holds one check, with one `push` per token."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.explanation import Explanation
from tailrace.logprobs import TokenLogprobs


class NewToken(NamedTuple):
    """A token of the output, with its logprobs and why it came, where they are asked for."""

    id: int
    logprobs: TokenLogprobs | None
    explanation: Explanation | None = None
