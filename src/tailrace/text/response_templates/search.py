"""Searches for the markers of a response template in a growing text, whether literal texts or expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailrace.text.response_templates.marker_parts import read_parts, split_marker
from tailrace.text.response_templates.pattern import MAX_PROGRAM, Pattern, PatternError, Saves
from tailrace.text.tool_parsers.call_parser import partial_marker

SLICE = 64  # characters that are searched at once
MAX_SCANS = 16  # times that each character of a value may be read
Texts = tuple[tuple[str, ...], ...]


class AnchorMatch(NamedTuple):
    """A match. start, end: characters since the search began. saves: where the named groups begin and end."""

    start: int
    end: int
    saves: Saves = ()


class ProgramSearch:
    """A search for the first match of an expression in a growing text.

    Attributes:
        found: the match so far. pending: where the earliest match may begin that is not decided; None: all is decided.
    """

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._threads: list[tuple[int, int, Saves]] = []  # instruction, start of the match, groups; by priority
        self._at = 0
        self._kept: list[str] = []  # the text since the first thread's start
        self._text_from = 0
        self.found: AnchorMatch | None = None

    @property
    def pending(self) -> int | None:
        """Where the earliest undecided match may begin."""
        return min((start for _, start, _ in self._threads), default=None)

    def feed(self, text: str, ended: bool) -> None:
        """Add text. ended: the text is complete."""
        for char in text:
            if self.found is not None and not self._threads:
                return
            if self._threads or (self.found is None and self._pattern.begins(char)):
                if not self._threads and self.found is None:
                    self._kept, self._text_from = [], self._at
                self._kept.append(char)
                self._step(char)
            self._at += 1
        if ended:
            self._step(None)
            self._threads = []

    def _step(self, char: str | None) -> None:
        pattern, seen = self._pattern, set[int]()
        threads = [*self._threads, *([(0, self._at, ())] if self.found is None else ())]
        self._threads = []
        for at, start, saves in threads:
            for here, kept in pattern.expand(at, saves, seen, char is None, self._at):
                step = pattern.program[here]
                if step.kind == "match":
                    if self._at > start:
                        self.found = AnchorMatch(start, self._at, kept)
                        return
                elif char is not None and step.accepts is not None and step.accepts(char):
                    self._threads.append((here + 1, start, kept))

    def read_groups(self) -> dict[str, str]:
        """Return the texts of the named groups of the match."""
        text, places, groups = "".join(self._kept), dict(self.found.saves if self.found else ()), {}
        for number, name in self._pattern.names.items():
            if 2 * number in places and 2 * number + 1 in places:
                begin, end = places[2 * number] - self._text_from, places[2 * number + 1] - self._text_from
                groups[name] = text[begin:end]
        return groups

    def read_from(self, place: int) -> str:
        """Return the text from a place behind the beginning of the match."""
        return "".join(self._kept[place - self._text_from :])

    def read_growing(self, key: str, value: str, at: int) -> tuple[str, str] | None:
        """See MatchReader.read_growing."""
        if not self._threads:
            return None
        first = self._threads[0][1]
        ways = [(place, dict(saves)) for place, start, saves in self._threads if start == first]
        if self.found is not None or not any(place - 1 in self._pattern.endless for place, _ in ways):
            return None
        (one, begun), *_ = places = [(self._get_place(key, saves), self._get_place(value, saves)) for _, saves in ways]
        if None in (*one, begun[0]) or any(other[0] != one or other[1][0] != begun[0] for other in places):
            return None
        end = min(self._at if until is None else until for _, (_, until) in places)
        begin, own = (begun[0] or 0) - self._text_from + at, [(place or 0) - self._text_from for place in one]
        return "".join(self._kept[own[0] : own[1]]), "".join(self._kept[begin : end - self._text_from])

    def read_rest(self, value: str) -> str:
        """See MatchReader.read_rest."""
        begin, _ = self._get_place(value, dict(self._threads[0][2]))
        return self.read_from(begin or 0)

    def _get_place(self, name: str, saves: Mapping[int, int]) -> tuple[int | None, int | None]:
        number = next(number for number, one in self._pattern.names.items() if one == name)
        return saves.get(2 * number), saves.get(2 * number + 1)


class LiteralSearch:
    """A search for the first of some literal texts in a growing text. The attributes are those of ProgramSearch."""

    def __init__(self, literals: tuple[str, ...]) -> None:
        self._literals = sorted(literals, key=len, reverse=True)
        self._text, self._from = "", 0  # text that counts, and its place
        self.found: AnchorMatch | None = None
        self.pending: int | None = None

    def feed(self, text: str, ended: bool) -> None:
        """Add text. ended: the text is complete."""
        if self.found is not None and self.pending is None:
            return
        self._text += text
        places = [(at, -len(mark)) for mark in self._literals if (at := self._text.find(mark)) >= 0]
        keep = 0 if ended else max(partial_marker(self._text, mark) for mark in self._literals)
        first = start = len(self._text) - keep
        self.found = None
        if places:
            at, length = min(places)
            self.found = AnchorMatch(at + self._from, at + self._from - length)
            first = min(first, at)
        decided = not keep or (self.found is not None and start + self._from > self.found.start)
        self.pending = None if decided else start + self._from
        self._text, self._from = self._text[first:], self._from + first

    def read_groups(self) -> dict[str, str]:
        """Return the named groups of the match: none."""
        return {}


Search = ProgramSearch | LiteralSearch


class Anchor(NamedTuple):
    """What opens or closes a field: literal texts, or an expression."""

    literals: tuple[str, ...] = ()
    pattern: Pattern | None = None

    def get_literal(self) -> str | None:
        """Return the single text that the anchor is, without white space around it; None if it may be several."""
        found = self.list_texts()
        return found[0][0] if found is not None and len(found) == len(found[0]) == 1 else None

    def list_texts(self) -> Texts | None:
        """Return the alternatives, each as texts between which white space may stand; None if there are others."""
        if self.pattern is None:
            return tuple((text,) for text in self.literals)
        texts = split_marker(read_parts(self.pattern.source))
        return None if texts is None else (texts,)

    def search(self) -> Search:
        """Return a new search."""
        return LiteralSearch(self.literals) if self.pattern is None else ProgramSearch(self.pattern)


class MatchReader:
    """The matches in a growing text, from left to right.

    Raises:
        PatternError: `feed` has read the same text too often.
    """

    def __init__(self, pattern: Pattern) -> None:
        self._pattern, self._search = pattern, ProgramSearch(pattern)
        self._from = self._fed = self._scanned = 0

    def feed(self, text: str, ended: bool = False) -> Iterator[tuple[AnchorMatch, dict[str, str]]]:
        """Add text. Yield the matches that are certain, with their groups. ended: the text is complete."""
        self._fed += len(text)
        while True:
            search, at = self._search, 0
            while at < len(text) and (search.found is None or search.pending is not None):
                search.feed(text[at], False)
                at += 1
            self._scanned += at
            if ended and at == len(text):
                search.feed("", True)
            if (found := search.found) is None or search.pending is not None:
                return
            if self._scanned > MAX_SCANS * self._fed + MAX_PROGRAM:
                raise PatternError("a regular expression takes too long")
            text = search.read_from(found.end) + text[at:]
            begin, self._search = self._from, ProgramSearch(self._pattern)
            self._from += found.end
            yield found._replace(start=found.start + begin, end=found.end + begin), search.read_groups()

    def read_growing(self, key: str, value: str, at: int) -> tuple[str, str] | None:
        """Return the text of a group and of a later group that is not complete, if the match is certain.

        The match is certain except for its end: it fails only if the text ends before. at: the number of characters of
        the value that are left out.
        """
        return self._search.read_growing(key, value, at)

    def read_rest(self, value: str) -> str:
        """Return the text from the beginning of a group that is not complete."""
        return self._search.read_rest(value)


def find_all_matches(pattern: Pattern, text: str) -> Iterator[tuple[AnchorMatch, Mapping[str, str]]]:
    """Yield the matches of a whole text with their groups, from left to right.

    Raises:
        PatternError: the expression reads the same text too often.
    """
    reader = MatchReader(pattern)
    for at in range(0, len(text), SLICE):
        yield from reader.feed(text[at : at + SLICE])
    yield from reader.feed("", ended=True)
