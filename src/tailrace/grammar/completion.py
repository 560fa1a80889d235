"""Finds a short sequence of tokens that completes a text, for an output that is about to reach its token limit.

A limited-discrepancy search (Harvey and Ginsberg, IJCAI 1995): first the path that always takes the most promising
token, then the paths that take another token once, and so on. The ranking is a heuristic for what ends JSON. In other
grammars forced tokens and long tokens go first. The search may miss a completion that exists, and the one it finds need
not be the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy

from tailrace.grammar.jump_forward import forced_tokens
from tailrace.grammar.matcher import GrammarMatcher
from tailrace.grammar.vocabulary import CLOSERS, Vocabulary

MAX_MASKS = 256  # Masks per search, at 0.1 to 0.5 ms each.
TEXTS_PER_MASK = 16  # A trial of a text costs a copy of the matcher. This many count as one mask.
MAX_FORCED = 8  # Forced tokens between two yields.
WIDTH = 4  # Alternatives tried at one point.
TYPICAL = 8  # Bytes. Longer tokens rank the same: they add more text, not better text.
MAX_DISCREPANCIES = 3
# what patterns and formats of strings often require, as a whole or at the end
TEXTS = (
    *(b"1.0", b"1.1", b"1.0.0", b"v1.0.0", b"127.0.0.1", b"000000", b"#000000", b"0x0", b"1s", b"100%"),
    *(b"2000-01-01", b"2000-01-01T00:00:00Z", b"00:00:00"),
    *(b"@a.co", b"a@a.co", b".a.co", b"http://a.co", b"https://a.co", b"https://a.co/a"),
    *(b"a/a", b"/a", b"./a", b"a:a", b"a.a", b"a-1", b"A1", b"Aa1", b"en-US", b"$a", b"${a}"),
    *(b"a.json", b".png", b".md", b".yml"),
)


def shortest_completion(matcher: GrammarMatcher, budget: int, max_masks: int = MAX_MASKS) -> list[int] | None:
    """Return tokens, at most `budget`, after which the text is complete; [] if it is complete already.

    Equal states give equal tokens. The matcher does not change.

    Args:
        max_masks: the most masks to compute; TEXTS_PER_MASK short texts count as one mask.

    Returns:
        None if no completion was found within these bounds.

    Raises:
        GrammarError: see GrammarMatcher.fill.
    """
    search = completion_search(matcher, budget, max_masks)
    try:
        while True:
            next(search)
    except StopIteration as end:
        return end.value


def completion_search(matcher: GrammarMatcher, budget: int, max_masks: int) -> Generator[None, None, list[int] | None]:
    """Run `shortest_completion` as a generator, which yields between steps. The matcher may be used meanwhile."""
    search, start = CompletionSearch(budget, max_masks), matcher.fork()
    for discrepancies in range(MAX_DISCREPANCIES + 1):
        found = yield from search.search_paths(start.fork(), [], discrepancies)
        if found is not None or search.work <= 0:
            return found
    return None


class CompletionSearch:
    """One search: its bounds, and the work it may still do, counted in texts tried."""

    def __init__(self, budget: int, masks: int) -> None:
        self.budget, self.work = budget, masks * TEXTS_PER_MASK
        self.seen: dict[tuple[int, ...], tuple[list[list[int]], Iterator[list[int]]]] = {}

    def search_paths(
        self, place: GrammarMatcher, path: list[int], discrepancies: int
    ) -> Generator[None, None, list[int] | None]:
        """Search from `place`, which is consumed. A stack rather than recursion, since a budget may be thousands of
        tokens."""
        stack = [(place, path, discrepancies)]
        while stack:
            yield
            place, path, left = stack.pop()
            if place.finished or place.prefix(place.vocabulary.eos[:1]):
                return path
            room = self.budget - len(path)
            if room <= 0 or self.work <= 0:
                continue
            # no time limit: equal states must give equal tokens
            if forced := forced_tokens(place, min(room, MAX_FORCED), math.inf):
                # finding their end costs some more masks (jump_forward.MAX_BYTES_CHECKED)
                self.work -= TEXTS_PER_MASK * len(forced)
                if all(place.accept(token) for token in forced):
                    stack.append((place, path + forced, left))
                continue
            # without discrepancies left only the best is tried
            for rank, tokens in reversed(list(enumerate(self.rank_continuations(place, path, WIDTH if left else 1)))):
                if len(tokens) > room:
                    continue
                twin = place.fork()
                if all(twin.accept(token) for token in tokens):
                    stack.append((twin, path + tokens, left - bool(rank)))
        return None

    def rank_continuations(self, place: GrammarMatcher, path: list[int], width: int) -> list[list[int]]:
        """Return at most `width` sequences of tokens, the most promising first.

        Later walks reach the same places again, so results are cached.
        """
        found, rest = self.seen.setdefault(tuple(path), ([], self.propose_continuations(place)))
        self.work -= 1
        found += islice(rest, max(0, width - len(found)))
        return found[:width]

    def propose_continuations(self, place: GrammarMatcher) -> Iterator[list[int]]:
        self.work -= TEXTS_PER_MASK - 1
        allowed = place.get_allowed()
        known = token_orders(place.vocabulary)
        if known.letter < 0 or not allowed[known.letter]:
            yield from take_allowed(known.outside, allowed)
            return
        inside = take_allowed(known.inside, allowed)
        if known.ranks[inside[0][0]] != 0:  # otherwise a JSON string that may end here
            yield from self.find_endings(place, known.texts, allowed)
        yield from inside

    def find_endings(
        self, place: GrammarMatcher, texts: list[list[int]], allowed: numpy.ndarray
    ) -> Iterator[list[int]]:
        """Yield the texts that complete the text here, as far as the remaining work allows."""
        for text in texts:
            if self.work <= 0:
                return
            if allowed[text[0]]:
                self.work -= 1
                if is_completion(place, text):
                    yield text


def take_allowed(order: numpy.ndarray, allowed: numpy.ndarray) -> list[list[int]]:
    return [[int(token)] for token in order[allowed[order]][:WIDTH]]


def is_completion(place: GrammarMatcher, tokens: list[int]) -> bool:
    """Return True if these tokens complete the text, or the JSON string."""
    known = token_orders(place.vocabulary)
    after = [place.vocabulary.eos[0], *([known.quote] if known.quote >= 0 else [])]
    walker = place.fork()
    return all(walker.accept(token) for token in tokens) and any(walker.prefix((token,)) for token in after)


@dataclass(frozen=True)
class TokenOrders:
    """Token ids in the order in which they are tried: `inside` a JSON string, and `outside`.

    - ranks: [V], of `inside`.
    - texts: short texts that may satisfy a pattern.
    - letter, quote: ids of a letter and of the quote; -1 if the vocabulary lacks it.
    """

    inside: numpy.ndarray
    outside: numpy.ndarray
    ranks: numpy.ndarray
    texts: list[list[int]]
    letter: int
    quote: int


@lru_cache(maxsize=4)
def token_orders(vocabulary: Vocabulary) -> TokenOrders:
    """Return the orders of a vocabulary. Takes about 0.2 s for 50,000 tokens, once."""
    spelled = [(token, data) for token, data in enumerate(vocabulary.token_bytes) if data]

    def order_tokens(rank: Callable[[bytes], int]) -> numpy.ndarray:
        ranked = sorted((rank(data), -min(len(data), TYPICAL), token) for token, data in spelled)
        return numpy.array([token for _, _, token in ranked], dtype=numpy.int64)

    ranks = numpy.array([inside_rank(data) for data in vocabulary.token_bytes])
    by_byte = {data: token for token, data in reversed(spelled) if len(data) == 1}
    texts = [[by_byte.get(text[i : i + 1], -1) for i in range(len(text))] for text in (*sorted(by_byte), *TEXTS)]
    typed = [tokens for tokens in texts if -1 not in tokens]
    return TokenOrders(
        order_tokens(inside_rank),
        order_tokens(outside_rank),
        ranks,
        typed,
        by_byte.get(b"a", -1),
        by_byte.get(b'"', -1),
    )


def inside_rank(data: bytes) -> int:
    """Rank a token within a string: tokens that close it first, then letters and digits, other text, white space."""
    if data[:1] == b'"' and not data.strip(CLOSERS):
        return 0
    return 1 if data.isalnum() else 2 if data.strip() else 3


# continuations come before digits: a number could go on for ever
OUTSIDE = ({b",", b":"}, {b"0", b"null", b'""', b"[]", b"{}", b"true"}, {b'"', b"1", b"-", b"["}, {b"{"})


def outside_rank(data: bytes) -> int:
    """Rank a token outside of strings: closing brackets (as many as possible), continuations, whole values, a string,
    digits, other text, white space."""
    if not data.strip(b"]}"):
        return 0
    for rank, texts in enumerate(OUTSIDE, 1):
        if data in texts:
            return rank
    return 5 if data.isalnum() else 6 if data.strip() else 7
