"""Regular expressions over a growing text: the first end of a match, and the longest suffix that may still become one.

The syntax is Python's, compiled to a position automaton (Glushkov 1961). All paths advance together, one character at a
time, so the cost per character is bounded for any pattern. Expressions that look ahead or back are refused: anchors,
look-around, back-references, possessive repeats. Greedy and lazy repeats mean the same, because the match that ends
first counts.
"""

from __future__ import annotations

import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from functools import cache, cached_property, lru_cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeVar

from tailrace.errors import ParameterError, format_json

MAX_POSITIONS = 256  # characters to match, with repeats written out
MAX_EDGES = 1024  # transitions; bounds the work per character to 50 µs
MAX_WAYS = 1536  # of all sequences of a request, which advance in the same step
ASCII = "".join(map(chr, range(33, 127)))
BLOCK = 4096  # characters
MAX_ALPHABET = 1024  # characters per position whose result is cached

T = TypeVar("T")


class RegexPart(NamedTuple):
    """A part of a pattern: whether it matches the empty text, and the positions where a match may begin and end."""

    empty: bool
    first: frozenset[int]
    last: frozenset[int]


NOTHING = RegexPart(True, frozenset(), frozenset())


class ByCharacter(dict[str, T]):
    """A cache of `ask` per character."""

    def __init__(self, ask: Callable[[str], T]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, char: str) -> T:
        if len(self) >= MAX_ALPHABET:
            self.clear()
        answer = self[char] = self._ask(char)
        return answer


class Patterns:
    """Regular expressions, compiled together. Immutable.

    A position is a place in a pattern that matches one character.

    Args:
        field: the request field of the expressions, for errors.

    - passes: per position, a test of one character.
    - runs: per position, a pattern that matches runs of such characters.
    - through: per character, the positions that match it.
    - follow: per position, the positions that may come next.
    - ends: per position, the expression that is complete there, or None.
    - ending: the positions that complete an expression.
    - starts: per character, the positions where a match may begin.
    - edges: number of transitions.

    Raises:
        ParameterError: an expression can't be read, looks ahead or back, matches the empty text, or is too large.
    """

    def __init__(self, expressions: tuple[str, ...], field: str = "stop_regex") -> None:
        self._field = field
        self.passes: list[ByCharacter[bool]] = []
        self.runs: list[re.Pattern[str]] = []
        self.follow: list[set[int]] = []
        self.ends: list[str | None] = []
        self.edges = 0
        # a repeat compiles the same test again
        self._tests: dict[tuple[Any, int, int], tuple[ByCharacter[bool], re.Pattern[str]]] = {}
        first: set[int] = set()
        for source in expressions:
            part = self._parse_expression(source)
            first |= part.first
            for position in part.last:
                self.ends[position] = source
        self._tests.clear()
        self.through = ByCharacter(lambda char: frozenset(p for p, test in enumerate(self.passes) if test[char]))
        self.starts = ByCharacter(lambda char: sorted(first & self.through[char]))
        self.ending = frozenset(position for position, source in enumerate(self.ends) if source is not None)
        self._alone = sorted(first & self.ending)

    @cached_property
    def any_character(self) -> bool:
        """Whether every visible character matches by itself, so that any visible text has a match. The first call may
        take a second to test all characters."""
        runs = dict.fromkeys(self.runs[position] for position in self._alone)
        return bool(runs) and not any(unmatched(runs, text) for text in (ASCII, *make_visible_blocks()))

    # ---- building

    def _parse_expression(self, source: str) -> RegexPart:
        try:
            with warnings.catch_warnings(action="ignore"):  # a client's pattern must not write warnings to our log
                parsed = _parser.parse(source)
            part = self._build_sequence(parsed, parsed.state.flags)
        except ParameterError:
            raise
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise self._make_pattern_error(f"{format_json(source)} can't be read: {error}") from error
        if part.empty:
            raise self._make_pattern_error(f"{format_json(source)} matches the empty text")
        return part

    def _build_sequence(self, nodes: Any, flags: int) -> RegexPart:
        whole = NOTHING
        for op, value in nodes:
            whole = self._join_parts(whole, self._build_node(op, value, flags))
        return whole

    def _build_node(self, op: Any, value: Any, flags: int) -> RegexPart:
        if op in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN):
            return self._build_character(op, value, flags)
        if op is _constants.SUBPATTERN:
            _, added, removed, inner = value
            return self._build_sequence(inner, _compiler._combine_flags(flags, added, removed))
        if op is _constants.BRANCH:
            ways = [self._build_sequence(way, flags) for way in value[1]]
            return RegexPart(
                any(w.empty for w in ways), unite_sets(w.first for w in ways), unite_sets(w.last for w in ways)
            )
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            low, high, inner = value
            return self._build_repeat(low, high, inner, flags)
        raise self._make_pattern_error(
            f"{str(op).lower().replace('_', ' ')} is not supported: anchors, look-around, back-references and "
            "possessive repeats need text that is not there yet"
        )

    def _build_character(self, op: Any, value: Any, flags: int) -> RegexPart:
        if len(self.passes) >= MAX_POSITIONS:
            raise self._make_pattern_error(f"more than {MAX_POSITIONS} characters, repeats written out")
        key = (op, value if isinstance(value, int) else id(value), flags)
        if key not in self._tests:
            state = _parser.State()
            state.flags = flags
            several = (_constants.MAX_REPEAT, (1, _constants.MAXREPEAT, _parser.SubPattern(state, [(op, value)])))
            pattern = _compiler.compile(_parser.SubPattern(state, [several]))
            self._tests[key] = ByCharacter(lambda char: pattern.fullmatch(char) is not None), pattern
        test, run = self._tests[key]
        self.passes.append(test)
        self.runs.append(run)
        self.follow.append(set())
        self.ends.append(None)
        only = frozenset((len(self.passes) - 1,))
        return RegexPart(False, only, only)

    def _build_repeat(self, low: int, high: int, inner: Any, flags: int) -> RegexPart:
        if high == 0:
            return NOTHING
        once = self._build_sequence(inner, flags)
        if not once.first:  # the part is empty for any number of repeats
            return once
        if low == 0 and high == _constants.MAXREPEAT:
            self._link_positions(once.last, once.first)
            return once._replace(empty=True)
        whole = once._replace(empty=once.empty or low == 0)
        first, last = once.first, once.last  # positions of the last copy
        for _ in range(1, low):
            part = self._build_sequence(inner, flags)
            whole, first, last = self._join_parts(whole, part), part.first, part.last
        if high == _constants.MAXREPEAT:  # the last copy may repeat
            self._link_positions(last, first)
            return whole
        # x{0,3} is (x(x(x)?)?)?: each copy leads only to the next one, so the number of transitions stays linear
        for _ in range(max(low, 1), high):
            part = self._build_sequence(inner, flags)
            self._link_positions(last, part.first)
            whole, last = whole._replace(last=whole.last | part.last), part.last
        return whole

    def _join_parts(self, one: RegexPart, other: RegexPart) -> RegexPart:
        self._link_positions(one.last, other.first)
        return RegexPart(
            one.empty and other.empty,
            one.first | other.first if one.empty else one.first,
            one.last | other.last if other.empty else other.last,
        )

    def _make_pattern_error(self, why: str) -> ParameterError:
        return ParameterError(f"{self._field}: {why}", self._field)

    def _link_positions(self, sources: frozenset[int], targets: frozenset[int]) -> None:
        self.edges += len(sources) * len(targets)
        if self.edges > MAX_EDGES:
            raise self._make_pattern_error(
                f"too many ways through the patterns, more than {MAX_EDGES}; make their repeats shorter"
            )
        for source in sources:
            self.follow[source] |= targets


def unite_sets(sets: Any) -> frozenset[int]:
    """Return the union of all sets."""
    return frozenset().union(*sets)


def unmatched(patterns: Iterable[re.Pattern[str]], text: str) -> str:
    """Return the characters of a text that no pattern matches."""
    for pattern in patterns:
        text = pattern.sub("", text)
        if not text:
            break
    return text


@cache
def make_visible_blocks() -> tuple[str, ...]:
    """Return all visible characters, in blocks. Blocks limit the duration of one test."""
    blocks = (map(chr, range(begin, begin + BLOCK)) for begin in range(0, sys.maxunicode + 1, BLOCK))
    seen = ("".join(char for char in block if unicodedata.category(char)[0] not in "CZ") for block in blocks)
    return tuple(block for block in seen if block)


compile_patterns = lru_cache(maxsize=16)(Patterns)


def compile_request_patterns(field: str, expressions: tuple[str, ...], n: int = 1) -> Patterns:
    """Return the compiled patterns of a request with n sequences.

    Raises:
        ParameterError: see Patterns. Or the patterns have too many transitions for n sequences in one step.
    """
    found = compile_patterns(expressions, field)
    if (ways := found.edges + len(found.passes)) * n > MAX_WAYS:
        raise ParameterError(
            f"{field}: the patterns have {ways} characters and ways from one to the next; with n = {n} at most "
            f"{MAX_WAYS // n} are allowed",
            field,
        )
    return found


class RegexSearch:
    """The search in one text.

    - begun: reached position → number of characters since the start of the earliest match that reached it. It is never
      changed in place, so a caller can keep it and restore it later.
    """

    def __init__(self, of: Patterns) -> None:
        self._patterns = of
        self.begun: dict[int, int] = {}

    @property
    def held(self) -> int:
        """The number of characters at the end that may still become a match."""
        follow = self._patterns.follow
        return max((length for position, length in self.begun.items() if follow[position]), default=0)

    def push(self, char: str) -> tuple[int, str] | None:
        """Add a character. Return the length of the longest match that ends with it, and its expression; None without a
        match."""
        of, starts = self._patterns, self._patterns.starts[char]
        if not self.begun and not starts:
            return None
        begun: dict[int, int] = dict.fromkeys(starts, 1)
        through = of.through[char]
        for position, length in self.begun.items():
            for target in of.follow[position] & through:
                if begun.get(target, 0) <= length:
                    begun[target] = length + 1
        self.begun = begun
        found = [(begun[position], -position) for position in of.ending.intersection(begun)]
        if not found:
            return None
        length, position = max(found)
        return length, of.ends[-position] or ""

    def reset(self) -> None:
        """Forget the text so far: no match may begin in it."""
        self.begun = {}
