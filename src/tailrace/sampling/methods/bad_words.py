"""Bad words: the last id of a phrase becomes −inf where the ids before it end the sequence so far; a phrase of one id
is always banned (transformers' NoBadWordsLogitsProcessor). Phrases come as token ids: all spellings of a word are the
business of whoever has the tokenizer. Neutral: ()."""

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
    """Phrases of more than one id by the id before their last: only those can be completed now."""
    table: dict[int, list[tuple[int, ...]]] = {}
    for word in words:
        if len(word) > 1:
            table.setdefault(word[-2], []).append(word)
    return table


def ending(by_last: dict[int, list[tuple[int, ...]]], tokens: list[int]) -> list[int]:
    """The ids that would complete a phrase."""
    if not tokens:
        return []
    return [id for word in by_last.get(tokens[-1], ()) if (id := completed_by(word, tokens)) is not None]


def longer(params: SamplingParams) -> bool:
    """Some phrase depends on what was said before."""
    return any(len(word) > 1 for word in params.bad_words)


METHOD = LogitsEdit(edits, moves=longer, recalls=longer)
