"""Bad words: the last id of a phrase becomes −inf if the sequence ends with the ids before it.

A phrase of one id is always banned (transformers' NoBadWordsLogitsProcessor). Phrases come as token ids: the owner of
the tokenizer must list all spellings of a word. Neutral: ().
"""

from __future__ import annotations

from tailrace.kernels.program import Ban, ascending
from tailrace.params import SamplingParams
from tailrace.sampling.history import completed_by
from tailrace.sampling.slot import LogitsEdit, Slot


def edits(slot: Slot) -> list[Ban]:
    always = slot.once(
        "bad_words", lambda: Ban(ascending([word[-1] for word in slot.params.bad_words if len(word) == 1]))
    )
    by_last = slot.once("bad_words_by_last", lambda: phrases(slot.params.bad_words))
    now = ending(by_last, slot.history.tokens) if by_last and slot.history else ()
    return [always, Ban(ascending(now))] if now else [always]


def phrases(words: tuple[tuple[int, ...], ...]) -> dict[int, list[tuple[int, ...]]]:
    """Return the phrases of more than one id by the id before their last one. Only phrases under the sequence's last id
    can be completed next."""
    table: dict[int, list[tuple[int, ...]]] = {}
    for word in words:
        if len(word) > 1:
            table.setdefault(word[-2], []).append(word)
    return table


def ending(by_last: dict[int, list[tuple[int, ...]]], tokens: list[int]) -> list[int]:
    """Return the ids that would complete a phrase."""
    if not tokens:
        return []
    return [id for word in by_last.get(tokens[-1], ()) if (id := completed_by(word, tokens)) is not None]


def longer(params: SamplingParams) -> bool:
    """Return whether a phrase has more than one id, so that it depends on the tokens before."""
    return any(len(word) > 1 for word in params.bad_words)


METHOD = LogitsEdit(edits, moves=longer, recalls=longer)
