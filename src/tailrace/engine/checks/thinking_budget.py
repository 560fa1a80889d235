"""How long a sequence may think: its tokens between the markers, counted, and what closes the thought when they are
used up."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.engine.token_bytes import TokenText
from tailrace.options import ThinkingBudget
from tailrace.text.stop_strings import SpanTracker


class ThinkingBudgetCheck:
    """One sequence's budget. Looks at the text of all tokens, also of those that leave none in the answer."""

    def __init__(self, budget: ThinkingBudget, text: TokenText) -> None:
        self._budget = budget
        self._text = text
        self._spans = SpanTracker((budget.span, *budget.outside))
        self._spent = 0
        self._forced = 0  # tokens still to come that close the span

    def begin(self) -> Sequence[int]:
        """Before the first token: the ids that must come, where the prompt has opened a thinking span and the budget is
        0."""
        return self._close() if self._thinks and self._budget.max_tokens == 0 else ()

    def push(self, token: int) -> Sequence[int]:
        """One more token. The ids that must come next, if the budget is used up with it."""
        thought = self._thinks
        for char in self._text.push(token):
            self._spans.push(char)
        if self._forced:
            self._forced -= 1
            return ()
        if not self._thinks:
            self._spent = 0
            return ()
        self._spent += thought
        over = self._spent - self._budget.max_tokens
        # a closing marker that has begun may finish by itself, unless it takes longer than the marker is
        if over < 0 or (self._spans.midway and over < len(self._budget.closing_token_ids) - 1):
            return ()
        return self._close()

    @property
    def _thinks(self) -> bool:
        return self._spans.inside is self._budget.span

    def _close(self) -> Sequence[int]:
        self._spent, self._forced = 0, len(self._budget.closing_token_ids)
        return self._budget.closing_token_ids
