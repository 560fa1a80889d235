"""Banned strings: the text of a sequence as its tokens spell it, watched for strings that must never appear.

When one is complete, the sequence backs up to the token that began it, that token is banned at that position, and another
is drawn (exllamav2's banned strings, koboldcpp's "antislop"). Until a beginning is known to come to nothing its tokens are
held back, so nobody ever sees one. Works on the bytes of tokens: every way to spell a string is found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tailrace.params import SamplingParams
from tailrace.text.stops import compiled
from tailrace.wire.messages import TokenLogprobs

MAX_REWINDS = 1000  # of one sequence: a model that wants nothing else must not run for ever


class BannedText:
    """One sequence's watch. `banned`: output position → tokens ruled out there. `held`: tokens not sent yet."""

    def __init__(
        self, params: SamplingParams, token_bytes: Sequence[bytes], banned: dict[int, set[int]] | None = None
    ) -> None:
        self.fold = params.banned_ignore_case
        strings = (string.encode().lower().decode() if self.fold else string for string in params.banned_strings)
        self.automaton = compiled(tuple(dict.fromkeys(strings)))
        self.token_bytes = token_bytes
        self.states = [0]  # of the automaton, before each token and after the last
        self.lengths = [0]  # of the text in bytes, likewise
        self.banned = {} if banned is None else banned
        self.held: list[tuple[int, TokenLogprobs | None]] = []
        self.sent = 0
        self.rewinds = 0

    def push(self, token: int) -> int | None:
        """One more token. If a banned string is complete with it: the output position of the token that began it, or of
        the first one not sent yet. (After an earlier rewind a string may begin in what was safe to send before.)"""
        state, at = self.states[-1], self.lengths[-1]
        data = self.token_bytes[token] if token < len(self.token_bytes) else b""
        for byte in data.lower() if self.fold else data:
            at += 1
            state = self.automaton.advance(state, byte)
            if (found := self.automaton.found[state]) is not None:
                began = bisect_right(self.lengths, at - len(found.encode())) - 1
                return max(began, self.sent)
        self.states.append(state)
        self.lengths.append(at)
        return None

    def back_to(self, position: int) -> None:
        """Forget the tokens from this output position on."""
        del self.states[position + 1 :], self.lengths[position + 1 :]
        del self.held[position - self.sent :]
        for later in [place for place in self.banned if place > position]:
            del self.banned[later]  # another beginning: what followed the old one may follow this one
        self.rewinds += 1

    def release(self, everything: bool = False) -> list[tuple[int, TokenLogprobs | None]]:
        """The held tokens that can go out: those that can't be part of a banned string any more; at the end all."""
        free = self.lengths[-1] - self.automaton.hold[self.states[-1]]
        count = len(self.held) if everything else max(0, bisect_right(self.lengths, free) - 1 - self.sent)
        out, self.held = self.held[:count], self.held[count:]
        self.sent += len(out)
        return out
