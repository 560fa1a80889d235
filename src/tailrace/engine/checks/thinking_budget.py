"""The length limit of a sequence's thoughts: counts the tokens between the markers, and closes the thought at the
limit."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.engine.token_bytes import TokenText
from tailrace.request.options import ThinkingBudget
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import ReasoningFormat
from tailrace.text.tool_parsers import TOOL_FORMATS


class ThinkingBudgetCheck:
    """One sequence's budget. It reads the text of all tokens, including those that leave none in the answer, and finds
    thoughts in the same way as front ends."""

    def __init__(self, budget: ThinkingBudget, text: TokenText) -> None:
        self._budget = budget
        self._text = text
        self._splitter = splitter_of(budget)
        self._patience = max(len(budget.closing_token_ids), *map(len, ("", *budget.span.until))) - 1  # tokens
        self._spent = 0
        self._before_call, self._calls = 0, 0  # tokens spent before the thought's last call; number of calls
        self._forced = 0  # closing tokens that are still to come

    def begin(self) -> Sequence[int]:
        """Return the ids that must come first. There are such ids if the prompt has opened a thinking span and the
        budget is 0.
        """
        return self._close_thinking() if self._thinks and self._budget.max_tokens == 0 else ()

    def push(self, token: int, may_close: bool = True) -> Sequence[int]:
        """Add a token. Return the ids that must come next if the budget is used up with it.

        may_close: False if the next token is already fixed; then the ids follow a later token.
        """
        thought = self._thinks
        self._splitter.feed(self._text.push(token))
        self._splitter.thoughts.clear()
        if self._forced:
            self._forced -= 1
            return ()
        if not self._thinks:
            self._spent = self._before_call = 0
            self._calls = self._splitter.calls
            return ()
        self._spent += thought
        self._leave_calls_out()
        over = self._spent - self._budget.max_tokens
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
    def _thinks(self) -> bool:
        return self._splitter.thinking

    def _close_thinking(self) -> Sequence[int]:
        self._spent, self._before_call, self._forced = 0, 0, len(self._budget.closing_token_ids)
        return self._budget.closing_token_ids


def splitter_of(budget: ThinkingBudget) -> ChannelSplitter:
    """Return the splitter that finds the thoughts."""
    span = budget.span
    assert span.closing is not None
    form = ReasoningFormat(span.opening, span.closing, "", calls=budget.calls, also=budget.also, again=not span.once)
    return ChannelSplitter(form, TOOL_FORMATS.get(budget.tool_format), "opened" if span.opened else "unknown")
