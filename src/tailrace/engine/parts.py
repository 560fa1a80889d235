"""How many tokens of a budget each sequence of a pair computes, and which blocks and rows of logits that takes."""

from __future__ import annotations

from bisect import bisect_right

from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.plan import Work
from tailrace.engine.sequence import Sequence


def share_budget(sequence: Sequence, cache: BlockCache, budget: int, rows: int) -> list[int]:
    """Return how many tokens of this budget each sequence of the pair computes.

    rows: the most rows of logits without sampling that may be made.
    """
    return share_from(sequence, cache, [member.num_computed for member in sequence.pair], budget, rows)


def share_from(sequence: Sequence, cache: BlockCache, computed: list[int], budget: int, rows: int) -> list[int]:
    """Return the same as share_budget, given how many tokens of each are computed already."""
    remaining = [len(member.tokens) - done for member, done in zip(sequence.pair, computed, strict=True)]
    if sequence.walker is None:
        budget = cache.snapshots.limit_chunk(sequence, computed[0], budget)
        return split_budget(remaining, budget, most_tokens(sequence, computed[0], rows))
    parts: list[int] = []  # in a replay the rows of a pair wait for each other
    for member, left, done in zip(sequence.pair, remaining, computed, strict=True):
        most = most_tokens(member, done, rows)
        parts.append(min(left, budget) if most is None else min(left, budget, most))
        budget -= parts[-1]
    return parts


def most_tokens(member: Sequence, computed: int, rows: int) -> int | None:
    """Return the most tokens that it may compute, by the rows of logits that it needs; None: all."""
    return None if member.wanted is None else member.wanted.tokens(computed, rows)


def rows_made(sequence: Sequence, parts: list[int]) -> int:
    """Return the number of rows of logits without sampling, if each computes this many tokens more."""
    return sum(
        len(member.wanted.select_places(member.num_computed + part))
        for member, part in zip(sequence.pair, parts, strict=True)
        if member.wanted is not None and part
    )


def split_budget(remaining: list[int], budget: int, most: int | None) -> list[int]:
    """Return all uncomputed tokens, or as many as keep the pair's last tokens in one step.

    most: the most tokens that the first sequence may compute.
    """
    first = remaining[0] if most is None else min(remaining[0], most)
    if len(remaining) == 1:
        return [min(first, budget)]
    if first == remaining[0] and sum(remaining) <= budget:
        return remaining
    one = min(first, remaining[0] - 1, budget)
    return [one, min(remaining[1] - 1, budget - one)]


def count_work_blocks(sequence: Sequence, parts: list[int], cache: BlockCache) -> int:
    """Return the number of free blocks that computing this many tokens takes."""
    return sum(
        cache.count_needed_blocks(member, member.num_computed + part)
        for member, part in zip(sequence.pair, parts, strict=True)
        if part
    )


def make_work(sequence: Sequence, parts: list[int]) -> Work:
    """Return the pair's tokens in the form of a plan."""
    return [(member, part) for member, part in zip(sequence.pair, parts, strict=True) if part]


def fit_parts(sequence: Sequence, cache: BlockCache, free: int, budget: int, rows: int) -> list[int]:
    """Return the largest part of the budget that fits `free` more blocks; zeros if not even one token does."""
    wanted = range(1, budget + 1)
    most = bisect_right(
        wanted, free, key=lambda tokens: count_work_blocks(sequence, share_budget(sequence, cache, tokens, rows), cache)
    )
    return share_budget(sequence, cache, most, rows)
