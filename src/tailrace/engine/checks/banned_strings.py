"""Banned strings and patterns: searches the text of a sequence, as its tokens' bytes give it, for banned text.

A token that contains a banned string can never be sampled (text/token_search.py). Banned text across several tokens is
found when it is complete. The sequence is then rewound to the token in which the text began, that token is banned at
that position, and another one is sampled (exllamav2's banned strings, koboldcpp's "antislop"). Tokens that may still
become part of banned text are held back, so no client ever sees such text.

The text is that of the answer. Special tokens that are left out of it leave no text, nor does the token that ends it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tailrace.engine.checks import NewToken
from tailrace.engine.token_bytes import TokenBytes
from tailrace.params import SamplingParams
from tailrace.text.stop_regex import Patterns, RegexSearch, compile_request_patterns
from tailrace.text.stop_strings import AhoCorasick, compile_strings
from tailrace.text.utf8 import decode_utf8

GRACE = 16  # tokens that may be removed before the sequence has sent any
MARK = 64  # characters between two marks; after a rewind the text is read again from a mark
LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True, slots=True)
class Bans:
    """The compiled bans of a request, shared by its sequences.

    mask: uint32 [⌈V / 32⌉]. A token whose bit is 0 contains a whole banned string.
    """

    token_bytes: TokenBytes
    hidden: frozenset[int]
    fold: bool
    strings: AhoCorasick
    patterns: Patterns
    mask: np.ndarray

    @staticmethod
    def of(params: SamplingParams, token_bytes: TokenBytes, vocab_size: int, eos: Iterable[int]) -> Bans:
        """Compile the bans. Raises ParameterError for a pattern that can't be served."""
        fold, hidden = params.banned_ignore_case, params.hidden(token_bytes.special)
        strings = tuple(dict.fromkeys(s.translate(LOWER) if fold else s for s in params.banned_strings))
        held = np.ones(-(-vocab_size // 32) * 32, dtype=bool)
        held[:vocab_size] = False
        if strings:
            known = token_bytes.within(fold).find_containing(string.encode() for string in strings)[:vocab_size]
            held[: len(known)] = known
            silent = (
                []
                if params.include_stop_str_in_output
                else [*params.stop_token_ids, *(() if params.ignore_eos else eos)]
            )
            held[[token for token in (*hidden, *silent) if token < vocab_size]] = False
        mask = np.packbits(~held, bitorder="little").view(np.uint32)
        found = compile_request_patterns("banned_regex", params.banned_regex, params.n)
        return Bans(token_bytes, hidden, fold, compile_strings(strings), found, mask)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that the token leaves in the text."""
        table = self.token_bytes.token_bytes
        return b"" if token in self.hidden or token >= len(table) else table[token]


class Mark(NamedTuple):
    """A reading position in the text: after this many tokens and characters.

    - state: of the automaton.
    - begun: of the search.
    - pending: the bytes of an incomplete character, which began in token `origin`.
    - whole: the last number of tokens after which no character was incomplete. Only there may the text end. If a token
      completes one character and begins the next, the text can be cut neither before nor after it.
    """

    tokens: int = 0
    characters: int = 0
    state: int = 0
    begun: dict[int, int] = {}  # noqa: RUF012, never changed in place
    pending: bytes = b""
    origin: int = 0
    whole: int = 0


class BannedStringCheck:
    """One sequence's check.

    - banned: output position → tokens banned there.
    - held: tokens not sent yet.
    - sent: number of sent tokens.
    - taken_back: number of discarded draws.
    - field: the parameter of the last match.
    - alone: the token that completed the match contains the whole banned text.
    """

    def __init__(self, bans: Bans, banned: dict[int, set[int]] | None = None, begun: bytes = b"") -> None:
        """begun: the bytes of an incomplete character at the prompt's end."""
        self._bans = bans
        self._search = RegexSearch(bans.patterns)
        self._now = Mark(pending=begun)
        self._marks = deque([self._now])
        self._tokens: list[int] = []
        self._owners = array("I")  # of each character: the token in which it begins
        self.banned = {} if banned is None else banned
        self.held: list[NewToken] = []
        self.sent = self.taken_back = 0
        self.field = "banned_strings" if bans.strings.may_start else "banned_regex"
        self.alone = False

    def push(self, token: int, silent: bool = False, last: bool = False) -> int | None:
        """Add a token. If it completes banned text, return the output position of the token in which the text began.
        Then `back_to` must follow.

        If that token was sent already, return the position of the first token that was not. After an earlier rewind,
        banned text may begin in a token that was safe to send.

        Args:
            silent: the token leaves no text.
            last: no token follows, so an incomplete character becomes U+FFFD.
        """
        began = self._scan_token(token, silent, last)
        if began is not None:
            return max(began, self.sent)
        if self._now.characters - self._marks[-1].characters >= MARK:
            self._marks.append(self._now)
        return None

    def back_to(self, position: int) -> None:
        """Drop the tokens from this output position on."""
        self.taken_back += len(self._tokens) - position
        del self.held[position - self.sent :]
        for later in [place for place in self.banned if place > position]:
            del self.banned[later]  # these bans applied after the dropped tokens only
        while self._marks[-1].tokens > position:
            self._marks.pop()
        self._now = self._marks[-1]
        again = self._tokens[self._now.tokens : position]
        del self._tokens[self._now.tokens :], self._owners[self._now.characters :]
        self._search.begun = self._now.begun
        for token in again:
            self._scan_token(token)

    def release(self, everything: bool = False) -> list[NewToken]:
        """Return the held tokens that can be sent: those that can't be part of banned text any more; at the end all of
        them."""
        held = max(self._bans.strings.held[self._now.state], self._search.held)
        first = self._owners[-held] if held else len(self._tokens)
        return self._release_tokens(len(self._tokens) if everything else min(first, self._now.whole))

    def rest(self) -> list[NewToken]:
        """Return the held tokens up to the last place where the text may end here."""
        return self._release_tokens(self._now.whole)

    # ---- inside

    def _release_tokens(self, upto: int) -> list[NewToken]:
        count = max(0, upto - self.sent)
        out, self.held = self.held[:count], self.held[count:]
        self.sent += len(out)
        while len(self._marks) > 1 and self._marks[1].tokens <= self.sent:
            self._marks.popleft()
        return out

    def _scan_token(self, token: int, silent: bool = False, last: bool = False) -> int | None:
        """Read the token's characters. Return the token in which banned text began, if such text is complete."""
        here, data = len(self._tokens), b"" if silent else self._bans.bytes_of(token)
        self._tokens.append(token)
        text, first, pending, origin = self._decode_characters(data, here, last)
        state, strings, search = self._now.state, self._bans.strings, self._search
        folded = text.translate(LOWER) if self._bans.fold else text
        walked = state or not strings.is_quiet(folded)
        for at, char in enumerate(text):
            self._owners.append(here if at else first)
            for byte in folded[at].encode() if walked else b"":
                state = strings.advance(state, byte)
            length, match = len(strings.found[state] or ""), search.push(char)
            if match is not None or length:
                pattern = 0 if match is None else match[0]
                self.field = "banned_regex" if pattern > length else "banned_strings"
                length = max(length, pattern)
                began = self._owners[-length]
                self.alone = began == here and not self._now.pending and is_text(data)
                return began
        whole = self._now.whole if pending else len(self._tokens)
        self._now = Mark(len(self._tokens), len(self._owners), state, search.begun, pending, origin, whole)
        return None

    def _decode_characters(self, data: bytes, here: int, last: bool) -> tuple[str, int, bytes, int]:
        """Decode the token's bytes after the pending ones.

        Returns the characters that it completes, the token in which the first of them begins, and the bytes and the
        token of the incomplete one.
        """
        before = self._now
        if not before.pending and not last:
            try:
                return data.decode(), here, b"", here
            except UnicodeDecodeError:
                pass
        text, pending = decode_utf8(before.pending + data, last)
        first = before.origin if before.pending else here
        return text, first, pending, here if text else first


def is_text(data: bytes) -> bool:
    """Return whether the bytes are whole characters."""
    try:
        data.decode()
        return True
    except UnicodeDecodeError:
        return False
