"""Per-sequence checks on generated text. structured_output.py is the check of a grammar; enders.py and free_part.py are
parts of that check. Every other file is one check, with one `push` per token."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.base.logprobs import TokenLogprobs
from tailrace.explain.record import Explanation


class NewToken(NamedTuple):
    """A token of the output, and on request its logprobs, its explanation and the ids that survived (in the form of
    wire/messages.py)."""

    id: int
    logprobs: TokenLogprobs | None
    explanation: Explanation | None = None
    survivors: bytes | None = None
