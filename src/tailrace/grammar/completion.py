"""The shortest way out that is easily found: tokens that complete a text, for an output that is about to run out of room.

A limited-discrepancy search (Harvey and Ginsberg, IJCAI 1995): first the path that always takes the most promising token, then those
that once take another, and so on. What is promising is guessed from what ends JSON; for other grammars forced tokens and long tokens
lead. It may miss a closing that exists, and the one it finds need not be the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy

from tailrace.grammar.vocabulary import CLOSERS, Vocabulary

if TYPE_CHECKING:
    from tailrace.grammar.matcher import GrammarMatcher

MAX_MASKS = 256  # looked at in one search, some 0.1 to 0.5 ms each
TEXTS_PER_MASK = 16  # a text that is tried costs a copy of the matcher: so many of them count as one mask
STRETCH = 8  # tokens of a text without a choice that are taken at once, between two looks at the clock
WIDTH = 4  # tokens tried at a place
TYPICAL = 8  # bytes; a longer token counts as one of so many: it says more, not better
MAX_DISCREPANCIES = 3
# what patterns and formats of strings often ask for, whole or at the end
TEXTS = (
    *(b"1.0", b"1.1", b"1.0.0", b"v1.0.0", b"127.0.0.1", b"000000", b"#000000", b"0x0", b"1s", b"100%"),
    *(b"2000-01-01", b"2000-01-01T00:00:00Z", b"00:00:00"),
    *(b"@a.co", b"a@a.co", b".a.co", b"http://a.co", b"https://a.co", b"https://a.co/a"),
    *(b"a/a", b"/a", b"./a", b"a:a", b"a.a", b"a-1", b"A1", b"Aa1", b"en-US", b"$a", b"${a}"),
    *(b"a.json", b".png", b".md", b".yml"),
)


def closing(matcher: GrammarMatcher, budget: int, max_masks: int = MAX_MASKS) -> list[int] | None:
    """Tokens, at most `budget`, after which the text is complete; [] where it is already. Deterministic: equal places give equal tokens.

    Looks at no more than `max_masks` masks, TEXTS_PER_MASK short texts that are tried counting as one; the matcher is as before afterwards.

    Returns:
        None where no way was found within these bounds.
    Raises:
        GrammarError: see GrammarMatcher.fill.
    """
    search = searching(matcher, budget, max_masks)
    try:
        while True:
            next(search)
    except StopIteration as end:
        return end.value


def searching(matcher: GrammarMatcher, budget: int, max_masks: int) -> Generator[None, None, list[int] | None]:
    """`closing`, a place at a time; the matcher may go on meanwhile."""
    search, start = CompletionSearch(budget, max_masks), matcher.fork()
    for discrepancies in range(MAX_DISCREPANCIES + 1):
        found = yield from search.walk(start.fork(), [], discrepancies)
        if found is not None or search.work <= 0:
            return found
    return None


class CompletionSearch:
    """One search: its bounds, and how much work it may still do, in texts tried."""

    def __init__(self, budget: int, masks: int) -> None:
        self.budget, self.work = budget, masks * TEXTS_PER_MASK
        self.seen: dict[tuple[int, ...], tuple[list[list[int]], Iterator[list[int]]]] = {}

    def walk(
        self, place: GrammarMatcher, path: list[int], discrepancies: int
    ) -> Generator[None, None, list[int] | None]:
        """From `place`, which is used up. A stack rather than recursion: a budget may be thousands of tokens."""
        stack = [(place, path, discrepancies)]
        while stack:
            yield
            place, path, left = stack.pop()
            if place.finished or place.prefix(place.vocabulary.eos[:1]):
                return path
            room = self.budget - len(path)
            if room <= 0 or self.work <= 0:
                continue
            if forced := place.forced(min(room, STRETCH), math.inf):  # not by the clock: equal places give equal tokens
                self.work -= TEXTS_PER_MASK * len(forced)  # and some masks more where it ends (ahead.SURE)
                if all(place.accept(token) for token in forced):
                    stack.append((place, path + forced, left))
                continue
            # without discrepancies left only the best is tried
            for rank, tokens in reversed(list(enumerate(self.ranked(place, path, WIDTH if left else 1)))):
                if len(tokens) > room:
                    continue
                twin = place.fork()
                if all(twin.accept(token) for token in tokens):
                    stack.append((twin, path + tokens, left - bool(rank)))
        return None

    def ranked(self, place: GrammarMatcher, path: list[int], width: int) -> list[list[int]]:
        """At most `width` sequences of tokens, those first that are most likely to lead to an end. Each walk comes by the places of the
        one before again: what was worked out there is kept."""
        found, rest = self.seen.setdefault(tuple(path), ([], self.promising(place)))
        self.work -= 1
        found += islice(rest, max(0, width - len(found)))
        return found[:width]

    def promising(self, place: GrammarMatcher) -> Iterator[list[int]]:
        self.work -= TEXTS_PER_MASK - 1
        allowed = place.allowed()
        known = orders(place.vocabulary)
        if known.letter < 0 or not allowed[known.letter]:
            yield from first(known.outside, allowed)
            return
        inside = first(known.inside, allowed)
        if known.ranks[inside[0][0]] != 0:  # else a string of JSON, which may end here
            yield from self.endings(place, known.texts, allowed)
        yield from inside

    def endings(self, place: GrammarMatcher, texts: list[list[int]], allowed: numpy.ndarray) -> Iterator[list[int]]:
        """Those of the texts with which this ends, as far as there is work left to find them."""
        for text in texts:
            if self.work <= 0:
                return
            if allowed[text[0]]:
                self.work -= 1
                if ends(place, text):
                    yield text


def first(order: numpy.ndarray, allowed: numpy.ndarray) -> list[list[int]]:
    return [[int(token)] for token in order[allowed[order]][:WIDTH]]


def ends(place: GrammarMatcher, tokens: list[int]) -> bool:
    """Is the text, or the string of JSON, complete with these?"""
    known = orders(place.vocabulary)
    after = [place.vocabulary.eos[0], *([known.quote] if known.quote >= 0 else [])]
    walker = place.fork()
    return all(walker.accept(token) for token in tokens) and any(walker.prefix((token,)) for token in after)


@dataclass(frozen=True)
class Orders:
    """Ids in the order in which they are tried within text and outside of it; `ranks` [V] within; short texts that may satisfy a pattern;
    the ids of a letter and of the quote (-1: there is none)."""

    inside: numpy.ndarray
    outside: numpy.ndarray
    ranks: numpy.ndarray
    texts: list[list[int]]
    letter: int
    quote: int


@lru_cache(maxsize=4)
def orders(vocabulary: Vocabulary) -> Orders:
    """Takes some 0.2 s for 50,000 tokens, once."""
    spelled = [(token, data) for token, data in enumerate(vocabulary.token_bytes) if data]

    def ordered(rank: Callable[[bytes], int]) -> numpy.ndarray:
        ranked = sorted((rank(data), -min(len(data), TYPICAL), token) for token, data in spelled)
        return numpy.array([token for _, _, token in ranked], dtype=numpy.int64)

    ranks = numpy.array([inside_rank(data) for data in vocabulary.token_bytes])
    by_byte = {data: token for token, data in reversed(spelled) if len(data) == 1}
    texts = [[by_byte.get(text[i : i + 1], -1) for i in range(len(text))] for text in (*sorted(by_byte), *TEXTS)]
    typed = [tokens for tokens in texts if -1 not in tokens]
    return Orders(
        ordered(inside_rank), ordered(outside_rank), ranks, typed, by_byte.get(b"a", -1), by_byte.get(b'"', -1)
    )


def inside_rank(data: bytes) -> int:
    """Within a string: what closes it and more, then what can stand in it, printable first."""
    if data[:1] == b'"' and not data.strip(CLOSERS):
        return 0
    return 1 if data.isalnum() else 2 if data.strip() else 3


# what leads on comes before digits: a number could go on for ever
OUTSIDE = ({b",", b":"}, {b"0", b"null", b'""', b"[]", b"{}", b"true"}, {b'"', b"1", b"-", b"["}, {b"{"})


def outside_rank(data: bytes) -> int:
    """Outside: closing brackets (as many as fit), what leads on, whole values, a string, digits, other text, blanks."""
    if not data.strip(b"]}"):
        return 0
    for rank, texts in enumerate(OUTSIDE, 1):
        if data in texts:
            return rank
    return 5 if data.isalnum() else 6 if data.strip() else 7
