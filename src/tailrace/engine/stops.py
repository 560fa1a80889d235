"""Stop strings and patterns where tokens are drawn, so that a sequence ends in the very step that completes one.

The front end (text/stream.py) has the last word: it cuts text, ids and logprobs. This only ends the sequence, with the same search over
the same characters, and only where they are surely the same: in byte-level vocabularies. Elsewhere the front end finds the stop and
aborts; the tokens drawn until then are counted as wasted.
"""

from __future__ import annotations

from tailrace.engine.spelling import Spelling, TokenText
from tailrace.params import SamplingParams
from tailrace.text.stops import matcher


class StopText:
    """One sequence's search."""

    stop_reason = None  # the front end names the stop

    def __init__(self, params: SamplingParams, spelling: Spelling) -> None:
        self._matcher = matcher(params)
        self._text = TokenText(spelling, params.hidden(spelling.special))
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(self, token: int) -> bool:
        """One more token. True if a stop is complete with it, beyond min_tokens."""
        self._num_tokens += 1
        _, match = self._matcher.feed(self._text.push(token), self._num_tokens > self._min_tokens)
        return match is not None
