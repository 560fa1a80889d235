"""How long a sequence may think: its tokens between the markers, counted, and what closes the thought when they are
used up."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.engine.token_bytes import TokenText
from tailrace.options import ThinkingBudget
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import ReasoningFormat
from tailrace.text.tool_parsers import TOOL_FORMATS


class ThinkingBudgetCheck:
    """One sequence's budget. Looks at the text of all tokens, also of those that leave none in the answer, and finds
    the thoughts in it as front ends do."""

    def __init__(self, budget: ThinkingBudget, text: TokenText) -> None:
        self._budget = budget
        self._text = text
        self._splitter = splitter_of(budget)
        self._patience = max(len(budget.closing_token_ids), *map(len, ("", *budget.span.until))) - 1  # tokens
        self._spent = 0
        self._before_call, self._calls = 0, 0  # what was spent before the last call within the thought; the calls
        self._forced = 0  # tokens still to come that close the span

    def begin(self) -> Sequence[int]:
        """Before the first token: the ids that must come, where the prompt has opened a thinking span and the budget is
        0."""
        return self._close() if self._thinks and self._budget.max_tokens == 0 else ()

    def push(self, token: int) -> Sequence[int]:
        """One more token. The ids that must come next, if the budget is used up with it."""
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
        # a marker that has begun may finish by itself, unless it takes longer than the marker is; so may a call
        midway = self._splitter.undecided > 0 and over < self._patience
        if over < 0 or midway or self._splitter.calling:
            return ()
        return self._close()

    def _leave_calls_out(self) -> None:
        """The tokens of a call after which the thought goes on are none of the thought."""
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

    def _close(self) -> Sequence[int]:
        self._spent, self._before_call, self._forced = 0, 0, len(self._budget.closing_token_ids)
        return self._budget.closing_token_ids


def splitter_of(budget: ThinkingBudget) -> ChannelSplitter:
    """What finds the thoughts."""
    span = budget.span
    assert span.closing is not None
    form = ReasoningFormat(span.opening, span.closing, "", calls=budget.calls, also=budget.also, again=not span.once)
    return ChannelSplitter(form, TOOL_FORMATS.get(budget.tool_format), "opened" if span.opened else "unknown")
