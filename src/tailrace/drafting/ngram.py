"""Prompt lookup: drafts what followed the last tokens when they came before, in the prompt or the output of the same
sequence (Yang et al., arXiv 2304.04487; Saxena 2023, "Prompt lookup decoding"). Needs no weights, and looks at no other
sequence.

The n-grams of a text are indexed once, each with all places that followed it (LZ77's hash chains, without collisions),
so a draft costs the same in a long text as in a short one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tailrace.drafting.base import Draft, DraftRequest, TargetStates
from tailrace.drafting.prefix import agreeing, standing
from tailrace.errors import ConfigError

MAX_SIZE = 32  # tokens of an n-gram
BITE = 4096  # new tokens indexed in one step, of all texts together, so that a long prompt stops nobody: some 10 ms
CANDIDATES = 16  # occurrences of the longest n-gram that are compared further back …
REACH = 64  # … over so many tokens


class NGram:
    """The longest suffix of max_size … min_size tokens that came before decides. Of several occurrences the one before
    which most tokens are as they are now, of these the latest. A copy that reaches the end of the text goes on with
    itself, so a repeated pattern is repeated.

    What agrees over n tokens vouches for n·per_match more: on code, edits and prose the first draft after 2 tokens
    is accepted in 30 to 50 % of cases, after 8 and more in 80 to 99 %. With 1.0, free text has a third of the wrong
    drafts that unlimited copies have, for 98 % of their gain (a vocabulary of 49,152, 8 drafts at most).

    Memory: 0.06 to 0.15 kB per size and token of the running sequences.

    Raises:
        ConfigError: not 1 ≤ min_size ≤ max_size ≤ 32, or per_match is not a positive number.
    """

    draws = False
    captures: tuple[int, ...] = ()

    def __init__(self, max_size: int = 4, min_size: int = 2, per_match: float = 1.0) -> None:
        if not 1 <= min_size <= max_size <= MAX_SIZE:
            raise ConfigError(
                f"n-grams need 1 ≤ min_size ≤ max_size ≤ {MAX_SIZE}, got min_size={min_size}, max_size={max_size}"
            )
        if not 0.0 < per_match < float("inf"):
            raise ConfigError(f"per_match must be a positive number, got {per_match}")
        self._sizes = range(max_size, min_size - 1, -1)
        self._per_match = per_match
        self._texts: dict[int, _IndexedText] = {}

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One-hot drafts; none where nothing matches, or while a long text is still being indexed."""
        left, drafts = BITE, []
        for request in requests:
            text = self._texts.get(request.slot)
            if text is None:
                text = self._texts[request.slot] = _IndexedText(self._sizes)
            left -= text.follow(request.tokens, left)
            drafts.append(Draft(self._copy(text, request) if text.size == len(request.tokens) else []))
        return drafts

    def observe(self, seen: TargetStates) -> None:
        """Hidden states say nothing here."""

    def remove(self, slot: int) -> None:
        """Forget its text."""
        self._texts.pop(slot, None)

    def _copy(self, text: _IndexedText, request: DraftRequest) -> list[int]:
        place, agreed = text.find()
        count = min(request.count, max(1, int(agreed * self._per_match)))
        return copied(request.tokens, place, count) if agreed else []


def copied(tokens: Sequence[int], place: int, count: int) -> list[int]:
    """`count` tokens from `place` < len(tokens) on; beyond the end the copy goes on with itself, as where matches
    overlap in LZ77."""
    piece = list(tokens[place : place + count])
    while len(piece) < count:
        piece += piece[: count - len(piece)]
    return piece


class _IndexedText:
    """One sequence and the index of its n-grams. The end of the text is followed by nothing and so not in the index: it
    never finds itself."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._tables = [_NgramTable(size) for size in sizes]  # the longest first

    @property
    def size(self) -> int:
        """Tokens indexed so far."""
        return len(self._tokens)

    def follow(self, tokens: Sequence[int], limit: int) -> int:
        """Make the index that of `tokens`, adding at most `limit`. It costs what is added and what is removed. Returns
        how many were added."""
        mine = self._tokens
        if (known := standing(mine, tokens)) < len(mine):
            for table in self._tables:
                table.cut(mine, known)
            del mine[known:]
        mine += tokens[known : known + limit]
        for table in self._tables:
            table.extend(mine, known)
        return len(mine) - known

    def find(self) -> tuple[int, int]:
        """The place that followed the best earlier occurrence of the end of the text, and how many tokens before it
        agree (REACH at most); 0: there is none."""
        tokens = self._tokens
        now = tokens[: -REACH - 1 : -1]  # backwards
        for table in self._tables:
            best, most = 0, 0
            for place in table.places(tokens):
                agreed = agreeing(tokens[max(0, place - REACH) : place][::-1], now)
                if agreed > most:
                    best, most = place, agreed
                if most == REACH:
                    break
            if most:
                return best, most
        return 0, 0


class _NgramTable:
    """The n-grams of one size: n-gram → the latest place that followed it, and for each place the one before it, −1:
    none."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._latest: dict[tuple[int, ...], int] = {}
        self._before = array("i")  # [place − size]

    def places(self, tokens: list[int]) -> list[int]:
        """Those that followed the last tokens, the latest first, CANDIDATES at most."""
        place = self._latest.get(tuple(tokens[-self._size :]), -1)
        found: list[int] = []
        while place >= 0 and len(found) < CANDIDATES:
            found.append(place)
            place = self._before[place - self._size]
        return found

    def extend(self, tokens: list[int], since: int) -> None:
        """The places `since` … len(tokens) − 1 have been added."""
        size, latest, append = self._size, self._latest, self._before.append
        first, end = max(since, size), len(tokens)
        if first >= end:
            return
        grams = zip(*(tokens[first - size + i : end - size + i] for i in range(size)), strict=True)
        for place, gram in enumerate(grams, first):
            append(latest.get(gram, -1))
            latest[gram] = place

    def cut(self, tokens: list[int], length: int) -> None:
        """The places from `length` on are about to go."""
        for place in range(len(tokens) - 1, max(length, self._size) - 1, -1):
            gram, before = tuple(tokens[place - self._size : place]), self._before.pop()
            if before < 0:
                del self._latest[gram]
            else:
                self._latest[gram] = before
