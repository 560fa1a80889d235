"""Ends a sequence in the step that completes a stop string or pattern. text/stop_strings.py has the search.

The front end (text/output.py) decides: it cuts text, ids and logprobs. This check uses the same detokenizer and the
same search, so that no token is sampled after a stop.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.params import SamplingParams
from tailrace.text.stop_strings import stop_search


class StopStringCheck:
    """One sequence's search."""

    stop_reason = None  # the front end names the stop

    def __init__(self, params: SamplingParams, read: Callable[[int], str]) -> None:
        """read: returns the text that a token completes; see TokenBytes.reader."""
        self._matcher = stop_search(params)
        self._read = read
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(self, token: int) -> bool:
        """Add a token. Return True if it completes a stop, beyond min_tokens."""
        self._num_tokens += 1
        _, match = self._matcher.feed(self._read(token), self._num_tokens > self._min_tokens)
        return match is not None
