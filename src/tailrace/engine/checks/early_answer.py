"""The answer that a model writes at once, although the prompt has opened a thought: the text of the free part, read as
if the grammar constrained it from the start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailrace.engine.checks.enders import Enders
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.base import Matcher
from tailrace.request.options import Grammar

SPACED = ("json_object", "json_schema")  # kinds whose text means the same with white space around it


class EarlyAnswer:
    """One sequence's text so far. Where it is complete under the grammar, the output may end by EOS, or by a stop id
    that is no text.

    A grammar that allows the empty text would allow an end anywhere in a thought, so such a grammar is not tried.
    """

    def __init__(self, grammar: Grammar, matcher: Matcher, token_bytes: TokenBytes, enders: Enders) -> None:
        """matcher: at the grammar's beginning; this object changes it."""
        self._matcher: Matcher | None = None if matcher.complete else matcher  # None: it is no answer
        self._spaced, self._token_bytes, self._enders = grammar.kind in SPACED, token_bytes, enders
        self._begun = False

    def push(self, token: int) -> None:
        """Add a token of the free part."""
        if self._matcher is not None and not self._accept(self._matcher, token):
            self._matcher = None

    def may_end(self, token: int, num_output: int) -> bool:
        """Return whether the token ends the output here. num_output: tokens before it."""
        found = self._matcher is not None and self._matcher.complete
        return found and token in self._enders.silent and self._enders.end(token, num_output)

    def allow_ends(self, rows: np.ndarray, drafts: Sequence[int], num_output: int) -> None:
        """Forbid the tokens that end the output, except where the text is a complete answer.

        Args:
            rows: uint32 [len(drafts) + 1, ⌈V / 32⌉], of ones. num_output: tokens of the output before the first row.
        """
        enders, begun = self._enders, self._begun
        matcher = self._matcher if self._matcher is None or not drafts else self._matcher.fork()
        for j, row in enumerate(rows):
            if j and matcher is not None and not self._accept(matcher, drafts[j - 1]):
                matcher = None
            if matcher is None or not matcher.complete or num_output + j < enders.min_tokens:
                enders.silent_bits.clear(row)
            elif enders.ignore_eos:
                enders.eos_bits.clear(row)
        self._begun = begun

    def _accept(self, matcher: Matcher, token: int) -> bool:
        """Add a token to the text. Return False if the text is no beginning of an answer."""
        accepted = matcher.accept(token)
        if not accepted and self._spaced and (matcher.complete or not self._begun):
            return not self._token_bytes.get_token_bytes(token).strip()
        self._begun |= accepted
        return accepted
