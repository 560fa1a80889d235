"""Forced tokens (jump-forward decoding): the tokens that must come next, searched for only as far as a step can use
them.

A library would follow a forced text to its end, and a pattern of eleven characters can force ten million. So the search
here goes from mask to mask: if all allowed tokens are prefixes of the longest one, the longest one comes next. Only its
first byte is certain; a later byte could differ where no single token continues. So the last token before a choice is
checked again byte by byte.
"""

from __future__ import annotations

import time
from functools import lru_cache

import numpy
import torch

from tailrace.grammar.matcher import GrammarMatcher
from tailrace.grammar.vocabulary import Vocabulary

LOOK_S = 0.002  # processor seconds of one search, and of all searches in a step. Later searches find the rest.
MAX_BYTES_CHECKED = 16  # Bytes of a last token that are checked one by one, a mask each.
MAX_ALLOWED = 64  # With more allowed tokens, or non-zero words of a mask, no common text is searched.
# If both tokens of a pair are allowed, there is a choice. Testing this is cheaper than a mask.
CHOICE_PAIRS = (b"ae", b"12", b" \n")


def forced_tokens(matcher: GrammarMatcher, count: int, within_s: float) -> list[int]:
    """Return the tokens that must come next, at most `count`. See Matcher.forced in grammar/base.py."""
    text, goes_on = forced_text(matcher, count, within_s)
    tokens, stable = matcher.vocabulary.cut(text) if text else ([], 0)
    if not tokens:
        return []
    if not stable and goes_on:  # in the middle of a long word: the last token may become a longer one
        stable = len(tokens) - 1
    walker = matcher.fork()
    taken = next((i for i, token in enumerate(tokens) if not walker.accept(token)), len(tokens))
    whole = taken == len(tokens) and walker.finished
    return tokens[: min(count, taken if whole else min(taken, stable))]


def forced_text(place: GrammarMatcher, count: int, within_s: float) -> tuple[bytes, bool]:
    """Return the text that must come next, as far as `count` + 1 tokens and the time limit reach, and whether it may
    continue after that."""
    if place.ended or place.complete or any(all(map(place.takes, pair)) for pair in choice_pairs(place.vocabulary)):
        return b"", False
    until = time.thread_time() + within_s
    mask = torch.zeros(place.vocabulary.words, dtype=torch.int32)
    text, last, before = b"", b"", place
    walker = place.fork()
    for _ in range(count + 1):
        if time.thread_time() > until:
            return text + last, True
        token = single_continuation(walker, mask)
        if token is None:
            break
        text, last, before = text + last, place.vocabulary.token_bytes[token], walker.fork()
        if not walker.accept(token) or walker.complete:
            break
    else:
        return text + last, True
    sure, goes_on = certain_prefix(before, last, mask, until)
    return text + sure, goes_on


def certain_prefix(place: GrammarMatcher, text: bytes, mask: torch.Tensor, until: float) -> tuple[bytes, bool]:
    """Return the prefix of the text that is certain to come next, and whether it may continue after that. Checks at
    most MAX_BYTES_CHECKED bytes, until time.thread_time exceeds `until`. The matcher is consumed."""
    by_byte = byte_tokens(place.vocabulary)
    for at, byte in enumerate(text):
        if at == MAX_BYTES_CHECKED or time.thread_time() > until:
            return text[:at], True
        token = single_continuation(place, mask) if not place.complete else None
        if token is None or place.vocabulary.token_bytes[token][0] != byte or not place.accept(by_byte.get(byte, -1)):
            return text[:at], False
    return text, False


def single_continuation(place: GrammarMatcher, mask: torch.Tensor) -> int | None:
    """Return `longest_of_prefixes` of the allowed tokens. mask: a buffer for them."""
    place.fill(mask)
    return longest_of_prefixes(mask.numpy(), place.vocabulary)


def longest_of_prefixes(words: numpy.ndarray, vocabulary: Vocabulary) -> int | None:
    """Return the longest token of a mask if all others are prefixes of it, else None. words: int32 [⌈V / 32⌉]."""
    places = words.nonzero()[0]
    if places.size > MAX_ALLOWED:
        return None
    bits = numpy.unpackbits(words[places].view(numpy.uint8), bitorder="little").reshape(-1, 32)
    rows, columns = bits.nonzero()
    if rows.size > MAX_ALLOWED:
        return None
    ids = (places[rows] * 32 + columns).tolist()
    texts = [vocabulary.token_bytes[token] for token in ids]
    longest = max(texts, key=len)
    return ids[texts.index(longest)] if all(longest.startswith(text) for text in texts) else None


@lru_cache(maxsize=4)
def byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Return a map from byte to the token of this one byte."""
    return {data[0]: token for token, data in enumerate(vocabulary.token_bytes) if len(data) == 1}


@lru_cache(maxsize=4)
def choice_pairs(vocabulary: Vocabulary) -> list[tuple[int, int]]:
    """Return the CHOICE_PAIRS that the vocabulary has, as tokens."""
    by_byte = byte_tokens(vocabulary)
    return [(by_byte[one], by_byte[other]) for one, other in CHOICE_PAIRS if one in by_byte and other in by_byte]
