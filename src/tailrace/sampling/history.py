"""The part of its sequence that a slot remembers for its methods. A token costs O(1), and tokens can be removed
again."""

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
    """The tokens of a sequence, prompt and output, and data derived from them.

    Args:
        params: select the derived data. `counts` is for the penalties, `repeats` for DRY, `ngrams` for no-repeat-ngram,
            `said` for SynthID.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int], output: Iterable[int]) -> None:
        self.tokens = [*prompt]
        self.num_prompt = len(self.tokens)
        self.tokens += output
        self.window = params.penalty_last_n
        self.scopes = (params.repetition_scope, params.penalty_scope)
        self._recounted: set[int] | None = None  # a set after the first call of `follow`
        self.counts = self._count_tokens() if params.penalised else None
        self.repeats = Suffixes(self.tokens, params.dry_sequence_breakers) if params.dry_multiplier else None
        asked = params.no_repeat_ngram_size or params.encoder_no_repeat_ngram_size
        self.ngrams = Suffixes(self.tokens) if asked else None
        self.said = self._make_keyed_text(params.watermark)

    def append(self, token: int) -> None:
        """Append an output token."""
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
        """Remove the last output token."""
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
        """Return the ids whose counts changed since the last call. The first call returns none."""
        recounted, self._recounted = self._recounted or set(), set()
        return recounted

    def get_weights(self, place: int) -> tuple[int, int]:
        """Return how often the token at `place` counts for repetition, and for presence and frequency."""
        output = place >= self.num_prompt
        repeated, counted = (in_scope(scope, output) for scope in self.scopes)
        return int(repeated), int(counted)

    def copy(self) -> History:
        """Return an independent copy, for a fork."""
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
        """Return the place that the newest token has pushed out of the window, or None."""
        place = len(self.tokens) - 1 - self.window
        return place if self.window >= 0 and place >= 0 else None

    def _make_keyed_text(self, mark: Watermark | None) -> _cpu.Said | None:
        """Return the text from which tournaments take their contexts."""
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
    """Return whether tokens of the output (else of the prompt) belong to the scope."""
    return scope == "both" or scope == ("output" if output else "prompt")


def completed_by(phrase: tuple[int, ...], tokens: list[int]) -> int | None:
    """Return the phrase's last id if `tokens` ends with the rest of the phrase, else None."""
    before = len(phrase) - 1
    return phrase[-1] if before == 0 or tuple(tokens[-before:]) == phrase[:-1] else None


class Suffixes:
    """Lengths of agreement with the end of the text. For each earlier place of the last token: how many tokens before
    and at that place equal the text's last tokens.

    Agreements are incremental. If the tokens at i and at the end are equal, agreement(i, end) = 1 + agreement(i − 1,
    end − 1). So a new token costs only its own earlier occurrences. At the start, and after a removal, one linear pass
    finds all agreements.

    A breaker ends every agreement and is part of none. The places of the first tokens are stored separately: all copies
    share them.
    """

    def __init__(self, tokens: Iterable[int], breakers: Iterable[int] = ()) -> None:
        tokens = np.array([*tokens], dtype=np.int64)
        self.breakers = frozenset(breakers)
        self.size = tokens.size
        self.tokens = np.concatenate([tokens, np.empty(max(64, tokens.size), dtype=np.int64)])
        self.length = np.empty_like(self.tokens)  # valid at places of the last token
        self.first = Places(tokens)
        self.kept = tokens.size  # number of first tokens that were never removed
        self.later: dict[int, list[int]] = {}  # token → its places after the first `kept`
        self._recompute_agreements()

    def append(self, token: int) -> None:
        """Append a token."""
        if self.size == self.tokens.size:
            self.tokens = np.concatenate([self.tokens, np.empty_like(self.tokens)])
            self.length = np.concatenate([self.length, np.empty_like(self.length)])
        self.tokens[self.size] = token
        self.size += 1
        if (earlier := self._find_places(token)).size:
            self._extend_agreements(earlier)
        self.later.setdefault(token, []).append(self.size - 1)

    def pop(self) -> None:
        """Remove the last token."""
        self.size -= 1
        if self.size < self.kept:
            self.kept = self.size
        else:
            self.later[int(self.tokens[self.size])].pop()
        self._recompute_agreements()

    def find_agreements(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the earlier places of the last token, ascending, and the length of agreement at each. A breaker's
        length is 0."""
        if self.size == 0:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        places = self._find_places(int(self.tokens[self.size - 1]))[:-1]
        return places, self.length[places]

    def copy(self) -> Suffixes:
        """Return an independent copy. The first tokens are shared, because they never change."""
        twin = object.__new__(Suffixes)
        twin.breakers, twin.size, twin.first, twin.kept = self.breakers, self.size, self.first, self.kept
        twin.tokens, twin.length = self.tokens.copy(), self.length.copy()
        twin.later = {token: list(places) for token, places in self.later.items()}
        return twin

    def _find_places(self, token: int) -> np.ndarray:
        """Return the token's places, ascending."""
        first, later = self.first.of(token, self.kept), self.later.get(token)
        return np.concatenate([first, np.array(later, dtype=np.int64)]) if later else first

    def _extend_agreements(self, earlier: np.ndarray) -> None:
        """Compute the agreements with the new end from those with the old end."""
        token = int(self.tokens[self.size - 1])
        if token in self.breakers:
            self.length[earlier] = 0
            return
        before = earlier - 1
        agreed = (before >= 0) & (self.tokens[before] == self.tokens[self.size - 2])
        self.length[earlier] = 1 + np.where(agreed, self.length[before], 0)

    def _recompute_agreements(self) -> None:
        """Compute the agreements with the end from scratch."""
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
    """The places of each token in a text. It never changes. It uses arrays only: an object per token would trigger the
    garbage collector."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._places = tokens.argsort(kind="stable")
        self._tokens = tokens[self._places]

    def of(self, token: int, end: int) -> np.ndarray:
        """Return the token's places before `end`, ascending."""
        first, last = self._tokens.searchsorted(token, "left"), self._tokens.searchsorted(token, "right")
        places = self._places[first:last]
        return places[: places.searchsorted(end)]


def counted_in(copy: History | None, edit: Edit, source: History | None) -> Edit:
    """Return an edit of the source's slot for its copy. An edit by the source's counts becomes an edit by the copy's
    counts."""
    if copy is None or source is None or not isinstance(edit, Penalty) or edit.counts is not source.counts:
        return edit
    assert copy.counts is not None
    return replace(edit, counts=copy.counts)
