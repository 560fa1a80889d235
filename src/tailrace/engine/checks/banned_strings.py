"""Banned strings and patterns: checks the text of a sequence, as the bytes of its tokens give it, for what must never
appear.

A token that holds a banned string within itself can never be sampled (text/token_search.py). Banned text that lies
across tokens is found when it is complete. The sequence is then rewound to the token in which the text began, that
token is banned at that position, and another one is sampled (exllamav2's banned strings, koboldcpp's "antislop").
Tokens that may still become part of banned text are held back, so no client ever sees such text.

The text is that of the answer. Special tokens that are left out of it leave nothing, and so does the token that ends
it.
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
from tailrace.text.stop_regex import Patterns, RegexSearch, patterns
from tailrace.text.stop_strings import AhoCorasick, compile_strings
from tailrace.text.utf8 import decoded

GRACE = 16  # tokens that may be taken back before the sequence has sent any
MARK = 64  # characters between two marks, from which the text is read again after a rewind
LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True, slots=True)
class Bans:
    """What a request bans, compiled; its sequences share it.

    mask: uint32 [⌈V / 32⌉], a token whose bit is 0 holds a banned string within itself.
    """

    token_bytes: TokenBytes
    hidden: frozenset[int]
    fold: bool
    strings: AhoCorasick
    patterns: Patterns
    mask: np.ndarray

    @staticmethod
    def of(params: SamplingParams, token_bytes: TokenBytes, vocab_size: int, eos: Iterable[int]) -> Bans:
        """Raises ParameterError for a pattern that can't be served."""
        fold, hidden = params.banned_ignore_case, params.hidden(token_bytes.special)
        strings = tuple(dict.fromkeys(s.translate(LOWER) if fold else s for s in params.banned_strings))
        held = np.ones(-(-vocab_size // 32) * 32, dtype=bool)
        held[:vocab_size] = False
        if strings:
            known = token_bytes.within(fold).containing(string.encode() for string in strings)[:vocab_size]
            held[: len(known)] = known
            silent = (
                []
                if params.include_stop_str_in_output
                else [*params.stop_token_ids, *(() if params.ignore_eos else eos)]
            )
            held[[token for token in (*hidden, *silent) if token < vocab_size]] = False
        mask = np.packbits(~held, bitorder="little").view(np.uint32)
        found = patterns("banned_regex", params.banned_regex, params.n)
        return Bans(token_bytes, hidden, fold, compile_strings(strings), found, mask)

    def bytes_of(self, token: int) -> bytes:
        """What the token leaves in the text."""
        table = self.token_bytes.token_bytes
        return b"" if token in self.hidden or token >= len(table) else table[token]


class Mark(NamedTuple):
    """Where the reading of the text stands: after so many tokens and characters. state: of the automaton; begun: of the
    search. pending: bytes of a character that is not complete, which began in token `origin`. whole: the last
    number of tokens after which no character was incomplete: only there may the text end. (A token may complete one
    character and begin the next: then no cut beside it is clean.)"""

    tokens: int = 0
    characters: int = 0
    state: int = 0
    begun: dict[int, int] = {}  # noqa: RUF012, never changed in place
    pending: bytes = b""
    origin: int = 0
    whole: int = 0


class BannedStringCheck:
    """One sequence's check.

    Attributes:
        banned: output position → tokens banned there. held: tokens not sent yet; sent: how many are. taken_back:
            drawn in vain. field: the parameter that the last match was found for. alone: the token that completed it
            holds it within itself, wherever it stands.
    """

    def __init__(self, bans: Bans, banned: dict[int, set[int]] | None = None, begun: bytes = b"") -> None:
        """begun: the bytes of a character at the prompt's end that is not complete."""
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
        """One more token. If something banned is complete with it: the output position of the token that began it, or
        of the first one not sent yet. (After an earlier rewind it may begin in what was safe to send before.) Then
        `back_to` must follow.

        Args:
            silent: it leaves no text. last: none follows it, so that an incomplete character becomes U+FFFD.
        """
        began = self._read(token, silent, last)
        if began is not None:
            return max(began, self.sent)
        if self._now.characters - self._marks[-1].characters >= MARK:
            self._marks.append(self._now)
        return None

    def back_to(self, position: int) -> None:
        """Forget the tokens from this output position on."""
        self.taken_back += len(self._tokens) - position
        del self.held[position - self.sent :]
        for later in [place for place in self.banned if place > position]:
            del self.banned[later]  # another beginning: what followed the old one may follow this one
        while self._marks[-1].tokens > position:
            self._marks.pop()
        self._now = self._marks[-1]
        again = self._tokens[self._now.tokens : position]
        del self._tokens[self._now.tokens :], self._owners[self._now.characters :]
        self._search.begun = self._now.begun
        for token in again:
            self._read(token)

    def release(self, everything: bool = False) -> list[NewToken]:
        """The held tokens that can go out: those that can't be part of anything banned any more; at the end all."""
        held = max(self._bans.strings.held[self._now.state], self._search.held)
        first = self._owners[-held] if held else len(self._tokens)
        return self._out(len(self._tokens) if everything else min(first, self._now.whole))

    def rest(self) -> list[NewToken]:
        """The held tokens up to the last place where the text may end here."""
        return self._out(self._now.whole)

    # ---- inside

    def _out(self, upto: int) -> list[NewToken]:
        count = max(0, upto - self.sent)
        out, self.held = self.held[:count], self.held[count:]
        self.sent += len(out)
        while len(self._marks) > 1 and self._marks[1].tokens <= self.sent:
            self._marks.popleft()
        return out

    def _read(self, token: int, silent: bool = False, last: bool = False) -> int | None:
        """Walk its characters; the token that what is banned began in."""
        here, data = len(self._tokens), b"" if silent else self._bans.bytes_of(token)
        self._tokens.append(token)
        text, first, pending, origin = self._decoded(data, here, last)
        state, strings, search = self._now.state, self._bans.strings, self._search
        folded = text.translate(LOWER) if self._bans.fold else text
        walked = state or not strings.quiet(folded)
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

    def _decoded(self, data: bytes, here: int, last: bool) -> tuple[str, int, bytes, int]:
        """The characters that it completes, the token that the first of them begins in, and the incomplete one's bytes
        and token."""
        before = self._now
        if not before.pending and not last:
            try:
                return data.decode(), here, b"", here
            except UnicodeDecodeError:
                pass
        text, pending = decoded(before.pending + data, last)
        first = before.origin if before.pending else here
        return text, first, pending, here if text else first


def is_text(data: bytes) -> bool:
    """It is the bytes of whole characters."""
    try:
        data.decode()
        return True
    except UnicodeDecodeError:
        return False
