"""What must come next, seen no further ahead than a step can use.

A library would follow a forced text to its end, however long that is: a pattern of eleven characters can force ten million. So the way is
walked here, from mask to mask: where all allowed tokens are beginnings of the longest one, that one comes next. That is sure of its first
byte alone, and nearly so of the others (a byte could follow with which no token goes on); so the last step before a choice is walked again
byte by byte.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy
import torch

from tailrace.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tailrace.grammar.matcher import GrammarMatcher

LOOK_S = 0.002  # of processor time that one look, and all of a step, may take: what is not seen by then is seen from the next token on
SURE = 16  # bytes of a last token that are looked at one by one: a mask each
MOST = 64  # allowed tokens, and 32-bit words of a mask that hold them, with which it is worth asking whether they are one text
PAIRS = (b"ae", b"12", b" \n")  # where both of a pair may come there is a choice: cheaper than a mask


def ahead(place: GrammarMatcher, count: int, within_s: float) -> tuple[bytes, bool]:
    """The text that must come next, as far as `count` + 1 tokens of it and the time reach; and whether it may go on behind that."""
    if place.ended or place.complete or any(all(map(place.takes, pair)) for pair in pairs(place.vocabulary)):
        return b"", False
    until = time.thread_time() + within_s
    mask = torch.zeros(place.vocabulary.words, dtype=torch.int32)
    text, last, before = b"", b"", place
    walker = place.fork()
    for _ in range(count + 1):
        if time.thread_time() > until:
            return text + last, True
        token = allowed_alone(walker, mask)
        if token is None:
            break
        text, last, before = text + last, place.vocabulary.token_bytes[token], walker.fork()
        if not walker.accept(token) or walker.complete:
            break
    else:
        return text + last, True
    sure, goes_on = surely(before, last, mask, until)
    return text + sure, goes_on


def surely(place: GrammarMatcher, text: bytes, mask: torch.Tensor, until: float) -> tuple[bytes, bool]:
    """As much of the text as must come next, byte by byte, SURE bytes at most and until (time.thread_time) it is time; and whether it may
    go on behind that. The place is used up."""
    by_byte = single(place.vocabulary)
    for at, byte in enumerate(text):
        if at == SURE or time.thread_time() > until:
            return text[:at], True
        token = allowed_alone(place, mask) if not place.complete else None
        if token is None or place.vocabulary.token_bytes[token][0] != byte or not place.accept(by_byte.get(byte, -1)):
            return text[:at], False
    return text, False


def allowed_alone(place: GrammarMatcher, mask: torch.Tensor) -> int | None:
    """`only`, of what may come next. mask: where it is written."""
    place.fill(mask)
    return only(mask.numpy(), place.vocabulary)


def only(words: numpy.ndarray, vocabulary: Vocabulary) -> int | None:
    """The longest of a mask's tokens, where all others are beginnings of it. words: int32 [⌈V / 32⌉]."""
    places = words.nonzero()[0]
    if places.size > MOST:
        return None
    bits = numpy.unpackbits(words[places].view(numpy.uint8), bitorder="little").reshape(-1, 32)
    rows, columns = bits.nonzero()
    if rows.size > MOST:
        return None
    ids = (places[rows] * 32 + columns).tolist()
    texts = [vocabulary.token_bytes[token] for token in ids]
    longest = max(texts, key=len)
    return ids[texts.index(longest)] if all(longest.startswith(text) for text in texts) else None


@lru_cache(maxsize=4)
def single(vocabulary: Vocabulary) -> dict[int, int]:
    """byte → the token that is this byte alone."""
    return {data[0]: token for token, data in enumerate(vocabulary.token_bytes) if len(data) == 1}


@lru_cache(maxsize=4)
def pairs(vocabulary: Vocabulary) -> list[tuple[int, int]]:
    """PAIRS as tokens, those that the vocabulary has."""
    by_byte = single(vocabulary)
    return [(by_byte[one], by_byte[other]) for one, other in PAIRS if one in by_byte and other in by_byte]
