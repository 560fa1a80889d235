"""The free part of a text before the part under a grammar: a thought between two markers. The marker of a tool call may
also end it.

A marker may be one token or several. A token that completes a marker which ends the free part must not hold more text:
the grammar would not have seen that text. Such tokens are not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailrace.engine.token_bytes import TokenBytes
from tailrace.request.options import Grammar


class FreePart:
    """One sequence's free part.

    - inside: the text is in it.
    - openings: the rest of each marker that may still open it, as token ids. Empty after other text.
    - entered: the marker of a tool call has ended it.
    """

    def __init__(self, grammar: Grammar, token_bytes: TokenBytes, entry: Sequence[int]) -> None:
        """entry: the token ids of the marker of a tool call, if the grammar begins with one."""
        after = grammar.after
        self._token_bytes = token_bytes
        closings = () if after is None else (after.closing or "", *grammar.other_closings)
        self._entry = b"".join(map(token_bytes.get_token_bytes, entry))
        self._ends = [*(closing.encode() for closing in closings), *([self._entry] if self._entry else ())]
        self._longest = max(map(len, self._ends), default=0)
        self._tail = b""  # the last bytes of the free part, where a closing marker may have begun
        self.inside, self.entered = after is not None and after.opened, False
        self.openings = () if after is None or self.inside else grammar.opening_token_ids

    @property
    def next_openings(self) -> set[int]:
        """The tokens that open the free part, or continue a marker that does."""
        return {path[0] for path in self.openings}

    def push(self, token: int) -> bool:
        """Add a token. Return whether the free part begins or ends with it.

        Raises:
            ValueError: the token holds the closing marker and text after it.
        """
        if not self.inside:
            left = tuple(path[1:] for path in self.openings if path[0] == token)
            self.inside = () in left
            self.openings = () if self.inside else left
            return self.inside
        text = self._tail + self._token_bytes.get_token_bytes(token)
        self._tail = text[-self._longest :]
        ends = min(((text.find(marker) + len(marker), marker) for marker in self._ends if marker in text), default=None)
        if ends is None:
            return False
        if ends[0] < len(text):
            raise ValueError("the grammar begins right behind a marker: no token may hold both")
        self.inside, self.entered = False, ends[1] == self._entry
        return True

    def exclude(self, rows: np.ndarray, tokens: Sequence[int]) -> None:
        """Clear the bits of tokens that hold a marker's end and more text. Row j is that after j of the tokens.

        Args:
            rows: uint32 [len(tokens) + 1, ⌈V / 32⌉]. tokens: drafts.
        """
        text = self._tail
        for j, row in enumerate(rows):
            text += self._token_bytes.get_token_bytes(tokens[j - 1]) if j else b""
            for marker in self._ends:
                for begun, mask in self._token_bytes.beyond(marker).items():
                    if text.endswith(marker[:begun]):
                        row[: len(mask)] &= mask
