"""The end of a sequence's thoughts: counts the tokens between the markers, and closes a thought at its limit, or where
another check or the client ends it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.engine.token_bytes import TokenText
from tailrace.request.options import ThinkingBudget
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import ReasoningFormat
from tailrace.text.tool_parsers import TOOL_FORMATS

BUDGET, ASKED = "thinking_token_budget", "thought"  # causes: the limit is reached; another check or the client asks


class ThinkingBudgetCheck:
    """One sequence's budget. It reads the text of all tokens, including those that leave none in the answer, and finds
    thoughts in the same way as front ends."""

    def __init__(self, budget: ThinkingBudget, text: TokenText) -> None:
        self._budget = budget
        self._text = text
        self._splitter = splitter_of(budget)
        self._patience = max(len(budget.closing_token_ids), *map(len, ("", *budget.span.until))) - 1  # tokens
        self._spent, self._thought = 0, False  # whether the last token began within a thought
        self._ended_at = math.inf  # tokens spent when `end_thought` was called
        self.cause = BUDGET  # why the current thought is closed, as in Explanation.ended
        self._before_call, self._calls = 0, 0  # tokens spent before the thought's last call; number of calls
        self.over = False  # text under a grammar follows, which is no thought
        self._forced = 0  # closing tokens that are still to come

    def begin(self) -> Sequence[int]:
        """Return the ids that must come first. There are such ids if the prompt has opened a thinking span and the
        budget is 0.
        """
        return self._close_thinking() if self.thinks and self._budget.max_tokens == 0 else ()

    def read(self, token: int) -> None:
        """Add a token. `close` must follow, unless the sequence ends with the token."""
        self._thought = self.thinks
        self._splitter.feed(self._text.push(token))
        self._splitter.thoughts.clear()
        if not self.thinks:
            self._ended_at, self.cause = math.inf, BUDGET

    def end_thought(self) -> bool:
        """Let the next `close` end the current thought. Return False if there is no thought, or a call within it."""
        if not self.thinks or self._splitter.calling:
            return False
        if self._ended_at == math.inf and not self._forced:
            self._ended_at, self.cause = self._spent, ASKED
        return True

    def close(self, may_close: bool = True) -> Sequence[int]:
        """Return the ids that must come next if the thought ends with the last token.

        may_close: False if the next token is already fixed; then the ids follow a later token.
        """
        if self._forced:
            self._forced -= 1
            return ()
        if not self.thinks:
            self._spent = self._before_call = 0
            self._calls = self._splitter.calls
            return ()
        self._spent += self._thought
        self._leave_calls_out()
        limit = math.inf if self._budget.max_tokens is None else self._budget.max_tokens
        over = self._spent - min(limit, self._ended_at)
        # A marker that has begun may finish by itself, unless it takes longer than the marker's length. So may a call.
        midway = self._splitter.undecided > 0 and over < self._patience
        if over < 0 or midway or self._splitter.calling or not may_close:
            return ()
        return self._close_thinking()

    def _leave_calls_out(self) -> None:
        """Exclude the tokens of a call within a thought from the count."""
        splitter = self._splitter
        if splitter.calling:
            return
        if splitter.calls > self._calls:
            self._spent, self._calls = self._before_call, splitter.calls
        if not splitter.undecided:
            self._before_call = self._spent

    @property
    def thinks(self) -> bool:
        """True within a thought."""
        return self._splitter.thinking and not self.over

    def _close_thinking(self) -> Sequence[int]:
        forced = self._budget.forced_token_ids
        self._spent, self._before_call, self._forced, self._ended_at = 0, 0, len(forced), math.inf
        return forced


def splitter_of(budget: ThinkingBudget) -> ChannelSplitter:
    """Return the splitter that finds the thoughts."""
    span = budget.span
    assert span.closing is not None
    form = ReasoningFormat(span.opening, span.closing, "", calls=budget.calls, also=budget.also, again=not span.once)
    return ChannelSplitter(form, TOOL_FORMATS.get(budget.tool_format), "opened" if span.opened else "unknown")
