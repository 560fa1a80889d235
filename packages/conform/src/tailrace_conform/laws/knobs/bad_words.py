"""bad_words are never written; all else keeps its odds."""

from __future__ import annotations

from dataclasses import replace

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_LOGPROBS, judged
from tailrace_conform.expected import Expectation, neutral
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import Key, Spread, source
from tailrace_conform.verdict import Verdict, inconclusive

LEAST = 0.01  # of the probability must be left without the word


def text_of(key: Key) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else key


def without(spread: Spread, word: str) -> Expectation:
    """What is left without a word: its tokens, with and without a space before it, are not drawn. Tokens that are not
    reported may spell it too, so of the rest's mass a little is unsure."""
    plain = neutral(spread)
    kept = {key: 0.0 if text_of(key).strip() == word else p for key, p in plain.probabilities.items()}
    mass = sum(kept.values())
    low, high = max(0.0, plain.rest[0] - 2 * min(spread.probabilities)), plain.rest[1]
    return Expectation(kept, (low / (low + mass), high / (high + mass)), spread.tolerance)


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    words = [text_of(key).strip() for key, one in zip(spread.keys, spread.usable, strict=True) if one]
    likely = {
        word: neutral(spread).rest[0] + sum(without(spread, word).probabilities.values())
        for word in words
        if word.isalnum()
    }
    likely = {word: left for word, left in likely.items() if left > LEAST}
    if not likely:
        return inconclusive("no likely token is a word beside which other tokens are drawn")
    word = min(likely, key=lambda one: likely[one])
    law = replace(without(spread, word), stated={"no effect": neutral(spread)})
    return await judged(ctx, found, {"bad_words": [word]}, law, SHARE)


LAW = Law(
    id="knobs.bad-words",
    sentence="A word of bad_words is never written, and the odds of all other tokens stay as they are.",
    why="It is used to keep words out for certain; one spelling that is forgotten is enough.",
    method="The likeliest token that is a word is forbidden. First tokens are drawn with many seeds: none may be the "
    "word, with or without a space before it, and a sequential test compares the others with the reported odds.",
    violation="The word comes, or other tokens with it do not.",
    check=check,
    needs=("bad_words", "logprobs"),
    error_rate=SHARE,
)
