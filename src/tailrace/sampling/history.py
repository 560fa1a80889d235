"""What one slot remembers of its sequence, as far as its methods ask. O(1) per token, and a token can be taken back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tailrace import _cpu
from tailrace.kernels.program import Edit, Penalty
from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.request.sampler_fields import Scope
from tailrace.sampling.watermark import keyed_text


class History:
    """The tokens of a sequence, prompt and output, and what is derived from them.

    Args:
        params: says what is needed. `counts` is for the penalties, `repeats` for DRY, `ngrams` for no-repeat-ngram,
            `said` for SynthID.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int], output: Iterable[int]) -> None:
        self.tokens = [*prompt]
        self.num_prompt = len(self.tokens)
        self.tokens += output
        self.window = params.penalty_last_n
        self.scopes = (params.repetition_scope, params.penalty_scope)
        self._recounted: set[int] | None = None  # once somebody follows
        self.counts = self._count_tokens() if params.penalised else None
        self.repeats = Suffixes(self.tokens, params.dry_sequence_breakers) if params.dry_multiplier else None
        asked = params.no_repeat_ngram_size or params.encoder_no_repeat_ngram_size
        self.ngrams = Suffixes(self.tokens) if asked else None
        self.said = self._make_keyed_text(params.watermark)

    def append(self, token: int) -> None:
        """One more output token."""
        self.tokens.append(token)
        if self.counts is not None:
            self.counts.add(token, *self.get_weights(len(self.tokens) - 1))
            if (out := self._find_leaving()) is not None:
                self.counts.drop(self.tokens[out], *self.get_weights(out))
            self._note_recounted(out)
        if self.said is not None:
            self.said.add(token)
        for suffixes in (self.repeats, self.ngrams):
            if suffixes is not None:
                suffixes.append(token)

    def pop(self) -> None:
        """Take the last output token back."""
        if self.counts is not None:
            if (out := self._find_leaving()) is not None:
                self.counts.add(self.tokens[out], *self.get_weights(out))
            self._note_recounted(out)
            self.counts.drop(self.tokens[-1], *self.get_weights(len(self.tokens) - 1))
        self.tokens.pop()
        if self.said is not None:
            self.said.drop()
        for suffixes in (self.repeats, self.ngrams):
            if suffixes is not None:
                suffixes.pop()

    def follow(self) -> set[int]:
        """The ids whose counts have changed since this was asked last; the first time none."""
        recounted, self._recounted = self._recounted or set(), set()
        return recounted

    def get_weights(self, place: int) -> tuple[int, int]:
        """How often the token at `place` counts as repeated, and for presence and frequency."""
        output = place >= self.num_prompt
        repeated, counted = (in_scope(scope, output) for scope in self.scopes)
        return int(repeated), int(counted)

    def copy(self) -> History:
        """An independent copy, for a fork."""
        twin = object.__new__(History)
        twin.tokens, twin.num_prompt, twin.window, twin.scopes = (
            list(self.tokens),
            self.num_prompt,
            self.window,
            self.scopes,
        )
        twin._recounted = None
        twin.counts = self.counts and _cpu.Counts(self.counts)
        twin.repeats = self.repeats and self.repeats.copy()
        twin.ngrams = self.ngrams and self.ngrams.copy()
        twin.said = self.said and _cpu.Said(self.said)
        return twin

    def _note_recounted(self, out: int | None) -> None:
        if self._recounted is not None:
            self._recounted.update(self.tokens[-1:] if out is None else (self.tokens[-1], self.tokens[out]))

    def _find_leaving(self) -> int | None:
        """The place that the newest token has pushed out of the window."""
        place = len(self.tokens) - 1 - self.window
        return place if self.window >= 0 and place >= 0 else None

    def _make_keyed_text(self, mark: Watermark | None) -> _cpu.Said | None:
        """The text that a tournament is keyed by."""
        if mark is None or mark.kind != "synthid":
            return None
        said = _cpu.Said()
        for token in keyed_text(mark, self.tokens, self.num_prompt):
            said.add(token)
        return said

    def _count_tokens(self) -> _cpu.Counts:
        counts = _cpu.Counts()
        first = max(0, len(self.tokens) - self.window) if self.window >= 0 else 0
        for part, at in (
            (self.tokens[first : self.num_prompt], 0),
            (self.tokens[max(first, self.num_prompt) :], self.num_prompt),
        ):
            ids = np.array(part, dtype=np.int64)
            counts.extend(ids.ctypes.data, ids.size, *self.get_weights(at))
        return counts


def in_scope(scope: Scope, output: bool) -> bool:
    """Whether tokens of the output (else of the prompt) belong to the scope."""
    return scope == "both" or scope == ("output" if output else "prompt")


def completed_by(phrase: tuple[int, ...], tokens: list[int]) -> int | None:
    """The id that would complete the phrase now, if what comes before it is what was said last."""
    before = len(phrase) - 1
    return phrase[-1] if before == 0 or tuple(tokens[-before:]) == phrase[:-1] else None


class Suffixes:
    """For every earlier place whose token is the last one: how long the two stretches that end there and at the end
    agree.

    Incremental: agreement of places i and end is 1 + agreement of i − 1 and end − 1 where the tokens are equal, so a
    new token costs only its own earlier occurrences; from nothing, and where a token is taken back, all are found in
    one linear pass. A breaker ends every stretch and is in none. Where each token stands is kept apart for what was
    there at first, which all copies share.
    """

    def __init__(self, tokens: Iterable[int], breakers: Iterable[int] = ()) -> None:
        tokens = np.array([*tokens], dtype=np.int64)
        self.breakers = frozenset(breakers)
        self.size = tokens.size
        self.tokens = np.concatenate([tokens, np.empty(max(64, tokens.size), dtype=np.int64)])
        self.length = np.empty_like(self.tokens)  # valid where the token is the last one
        self.first = Places(tokens)
        self.kept = tokens.size  # of the first tokens those that have never been taken back
        self.later: dict[int, list[int]] = {}  # the places behind them
        self._recompute_agreements()

    def append(self, token: int) -> None:
        """One more token."""
        if self.size == self.tokens.size:
            self.tokens = np.concatenate([self.tokens, np.empty_like(self.tokens)])
            self.length = np.concatenate([self.length, np.empty_like(self.length)])
        self.tokens[self.size] = token
        self.size += 1
        if (earlier := self._find_places(token)).size:
            self._extend_agreements(earlier)
        self.later.setdefault(token, []).append(self.size - 1)

    def pop(self) -> None:
        """Take the last token back."""
        self.size -= 1
        if self.size < self.kept:
            self.kept = self.size
        else:
            self.later[int(self.tokens[self.size])].pop()
        self._recompute_agreements()

    def find_agreements(self) -> tuple[np.ndarray, np.ndarray]:
        """Earlier places of the last token, ascending, and the length of agreement at each (0 where it is a
        breaker)."""
        if self.size == 0:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        places = self._find_places(int(self.tokens[self.size - 1]))[:-1]
        return places, self.length[places]

    def copy(self) -> Suffixes:
        """An independent copy; what was there at first is shared, as it never changes."""
        twin = object.__new__(Suffixes)
        twin.breakers, twin.size, twin.first, twin.kept = self.breakers, self.size, self.first, self.kept
        twin.tokens, twin.length = self.tokens.copy(), self.length.copy()
        twin.later = {token: list(places) for token, places in self.later.items()}
        return twin

    def _find_places(self, token: int) -> np.ndarray:
        """Where it stands, ascending."""
        first, later = self.first.of(token, self.kept), self.later.get(token)
        return np.concatenate([first, np.array(later, dtype=np.int64)]) if later else first

    def _extend_agreements(self, earlier: np.ndarray) -> None:
        """Agreements with the new end, from those with the old one."""
        token = int(self.tokens[self.size - 1])
        if token in self.breakers:
            self.length[earlier] = 0
            return
        before = earlier - 1
        agreed = (before >= 0) & (self.tokens[before] == self.tokens[self.size - 2])
        self.length[earlier] = 1 + np.where(agreed, self.length[before], 0)

    def _recompute_agreements(self) -> None:
        """Agreements with the end from nothing."""
        if self.size == 0:
            return
        last = self.size - 1
        places = self._find_places(int(self.tokens[last]))[:-1]
        if places.size == 0:
            return
        unbroken = (
            next((back for back in range(self.size) if int(self.tokens[last - back]) in self.breakers), self.size)
            if self.breakers
            else self.size
        )
        found = np.empty(self.size, dtype=np.int64)
        _cpu.agreements(self.tokens.ctypes.data, self.size, found.ctypes.data)
        self.length[places] = np.minimum(found[places], unbroken)


class Places:
    """Where each token of a text stands. Never changes; arrays only, as an object per token would set off the garbage
    collector."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._places = tokens.argsort(kind="stable")
        self._tokens = tokens[self._places]

    def of(self, token: int, end: int) -> np.ndarray:
        """Ascending, those before `end`."""
        first, last = self._tokens.searchsorted(token, "left"), self._tokens.searchsorted(token, "right")
        places = self._places[first:last]
        return places[: places.searchsorted(end)]


def counted_in(copy: History | None, edit: Edit, source: History | None) -> Edit:
    """What an edit of the source's slot is in its copy's: what is counted from there on is its own."""
    if copy is None or source is None or not isinstance(edit, Penalty) or edit.counts is not source.counts:
        return edit
    assert copy.counts is not None
    return replace(edit, counts=copy.counts)
