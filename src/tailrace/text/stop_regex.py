"""Regular expressions over text that is still being written: where a match ends first, and what may still become one.

Python's own syntax, as a position automaton (Glushkov 1961) that is walked one character at a time, all ways at once: the cost per
character is bounded, whatever the pattern. What would need to look ahead or back is refused: anchors, look-around, back-references,
possessive repeats. Greedy and lazy mean the same, because the match that ends first counts.
"""

from __future__ import annotations

import re
import sys
import unicodedata
import warnings
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeVar

from tailrace.errors import ParameterError

MAX_POSITIONS = 256  # characters to match, repeats written out
MAX_EDGES = 1024  # ways from one to the next: the work per character, 50 µs at worst
MAX_WAYS = 1536  # of all sequences of a request: they are walked in the same step
ASCII = "".join(map(chr, range(33, 127)))
BLOCK = 4096  # characters
MAX_LIKELY = 4  # positions that are asked for all characters there are
MAX_ALPHABET = 1024  # different characters whose answer is remembered, per test

T = TypeVar("T")


class RegexPart(NamedTuple):
    """A piece of a pattern: whether it matches nothing as well, and the positions it may begin and end with."""

    empty: bool
    first: frozenset[int]
    last: frozenset[int]


NOTHING = RegexPart(True, frozenset(), frozenset())


class ByCharacter(dict[str, T]):
    """What `ask` says of a character; asked once."""

    def __init__(self, ask: Callable[[str], T]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, char: str) -> T:
        if len(self) >= MAX_ALPHABET:
            self.clear()
        answer = self[char] = self._ask(char)
        return answer


class Patterns:
    """Regular expressions, compiled together; immutable.

    Args:
        field: where they come from, for errors.

    Attributes:
        passes: per position, which characters it matches; runs: whether it does all of a text's.
        through: per character, the positions that do.
        follow: the positions that may come next. ends: the expression that is complete with it; ending: where there is one.
        starts: the positions that a match may begin with, by its first character.
        edges: how many ways from one position to the next.

    Raises:
        ParameterError: an expression can't be read, needs what is not known yet, matches the empty text, or is too large.
    """

    def __init__(self, expressions: tuple[str, ...], field: str = "stop_regex") -> None:
        self._field = field
        self.passes: list[ByCharacter[bool]] = []
        self.runs: list[Callable[[str], object]] = []
        self.follow: list[set[int]] = []
        self.ends: list[str | None] = []
        self.edges = 0
        # a repeat asks the same again
        self._tests: dict[tuple[Any, int, int], tuple[ByCharacter[bool], Callable[[str], object]]] = {}
        first: set[int] = set()
        for source in expressions:
            part = self._expression(source)
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
        """One of the expressions matches by itself every character that leaves something to be seen, so no text is without a match.
        (Several that only together do are not found.) Takes a second the first time that it must look at all characters."""
        likely = [self.runs[position] for position in self._alone if self.runs[position](ASCII)][:MAX_LIKELY]
        return any(all(map(run, visible())) for run in likely)

    # ---- building

    def _expression(self, source: str) -> RegexPart:
        try:
            with warnings.catch_warnings(action="ignore"):  # of a client's pattern, no matter for our log
                parsed = _parser.parse(source)
            part = self._sequence(parsed, parsed.state.flags)
        except ParameterError:
            raise
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise self._refused(f"{source[:100]!r} can't be read: {error}") from error
        if part.empty:
            raise self._refused(f"{source[:100]!r} matches the empty text")
        return part

    def _sequence(self, nodes: Any, flags: int) -> RegexPart:
        whole = NOTHING
        for op, value in nodes:
            whole = self._then(whole, self._node(op, value, flags))
        return whole

    def _node(self, op: Any, value: Any, flags: int) -> RegexPart:
        if op in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN):
            return self._character(op, value, flags)
        if op is _constants.SUBPATTERN:
            _, added, removed, inner = value
            return self._sequence(inner, _compiler._combine_flags(flags, added, removed))
        if op is _constants.BRANCH:
            ways = [self._sequence(way, flags) for way in value[1]]
            return RegexPart(any(w.empty for w in ways), union(w.first for w in ways), union(w.last for w in ways))
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            low, high, inner = value
            return self._repeat(low, high, inner, flags)
        raise self._refused(
            f"{str(op).lower().replace('_', ' ')} is not supported: anchors, look-around, back-references and possessive repeats need "
            "text that is not there yet"
        )

    def _character(self, op: Any, value: Any, flags: int) -> RegexPart:
        if len(self.passes) >= MAX_POSITIONS:
            raise self._refused(f"more than {MAX_POSITIONS} characters, repeats written out")
        key = (op, value if isinstance(value, int) else id(value), flags)
        if key not in self._tests:
            state = _parser.State()
            state.flags = flags
            several = (_constants.MAX_REPEAT, (1, _constants.MAXREPEAT, _parser.SubPattern(state, [(op, value)])))
            match = _compiler.compile(_parser.SubPattern(state, [several])).fullmatch
            self._tests[key] = ByCharacter(lambda char: match(char) is not None), match
        test, run = self._tests[key]
        self.passes.append(test)
        self.runs.append(run)
        self.follow.append(set())
        self.ends.append(None)
        only = frozenset((len(self.passes) - 1,))
        return RegexPart(False, only, only)

    def _repeat(self, low: int, high: int, inner: Any, flags: int) -> RegexPart:
        if high == 0:
            return NOTHING
        once = self._sequence(inner, flags)
        if not once.first:  # nothing, however often
            return once
        if low == 0 and high == _constants.MAXREPEAT:
            self._link(once.last, once.first)
            return once._replace(empty=True)
        whole = once._replace(empty=once.empty or low == 0)
        first, last = once.first, once.last  # of the copy that came last
        for _ in range(1, low):
            part = self._sequence(inner, flags)
            whole, first, last = self._then(whole, part), part.first, part.last
        if high == _constants.MAXREPEAT:  # it may come again
            self._link(last, first)
            return whole
        # x{0,3} is (x(x(x)?)?)?: each goes on to the next alone, so that the ways stay as many as the characters
        for _ in range(max(low, 1), high):
            part = self._sequence(inner, flags)
            self._link(last, part.first)
            whole, last = whole._replace(last=whole.last | part.last), part.last
        return whole

    def _then(self, one: RegexPart, other: RegexPart) -> RegexPart:
        self._link(one.last, other.first)
        return RegexPart(
            one.empty and other.empty,
            one.first | other.first if one.empty else one.first,
            one.last | other.last if other.empty else other.last,
        )

    def _refused(self, why: str) -> ParameterError:
        return ParameterError(f"{self._field}: {why}", self._field)

    def _link(self, sources: frozenset[int], targets: frozenset[int]) -> None:
        self.edges += len(sources) * len(targets)
        if self.edges > MAX_EDGES:
            raise self._refused(
                f"too many ways through the patterns, more than {MAX_EDGES}; make their repeats shorter"
            )
        for source in sources:
            self.follow[source] |= targets


def union(sets: Any) -> frozenset[int]:
    """Of all."""
    return frozenset().union(*sets)


@cache
def visible() -> tuple[str, ...]:
    """All characters that leave something to be seen, in blocks: none is looked through for long at a time."""
    blocks = (map(chr, range(begin, begin + BLOCK)) for begin in range(0, sys.maxunicode + 1, BLOCK))
    seen = ("".join(char for char in block if unicodedata.category(char)[0] not in "CZ") for block in blocks)
    return tuple(block for block in seen if block)


compiled = lru_cache(maxsize=16)(Patterns)


def patterns(field: str, expressions: tuple[str, ...], n: int = 1) -> Patterns:
    """Those of a request whose n sequences are all looked at in one step.

    Raises:
        ParameterError: see Patterns; or there are too many ways through them for so many sequences.
    """
    found = compiled(expressions, field)
    if (ways := found.edges + len(found.passes)) * n > MAX_WAYS:
        raise ParameterError(
            f"{field}: the patterns have {ways} characters and ways from one to the next; with n = {n} at most {MAX_WAYS // n} can be had",
            field,
        )
    return found


class RegexSearch:
    """One text's search.

    Attributes:
        begun: position reached → characters since the earliest match that got there began. Never changed in place: whoever keeps it can
            go back to it.
    """

    def __init__(self, of: Patterns) -> None:
        self._patterns = of
        self.begun: dict[int, int] = {}

    @property
    def held(self) -> int:
        """Characters at the end that may still become a match."""
        follow = self._patterns.follow
        return max((length for position, length in self.begun.items() if follow[position]), default=0)

    def push(self, char: str) -> tuple[int, str] | None:
        """One more character. How many characters the longest match has that is complete with it, and its expression."""
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
        """What comes next has nothing to do with what came before."""
        self.begun = {}
