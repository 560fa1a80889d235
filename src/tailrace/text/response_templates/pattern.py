"""Regular expressions of a checkpoint, matched in bounded time per character over a growing text.

A checkpoint is not trusted, so its expressions must not backtrack. An expression becomes a program of threads (Pike's
machine): the leftmost match wins, and the choice that the expression names first wins, as in Python's `re` with DOTALL.
Look-around, back-references and anchors other than the text's end are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

MAX_PROGRAM = 256  # instructions; bounds the work per character
ONE_CHARACTER = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
Saves = tuple[tuple[int, int], ...]


class PatternError(ValueError):
    """An expression that is damaged, or that cannot be matched in bounded time."""


class Instruction(NamedTuple):
    """One step of a program: char, split, jump, save, end or match.

    to: where a split or a jump leads, the preferred way first.
    """

    kind: str
    accepts: Callable[[str], object] | None = None
    to: tuple[int, int] = (0, 0)
    place: int = 0


class Pattern:
    """A compiled expression. Immutable.

    Raises:
        PatternError: see the module.
    """

    def __init__(self, source: str) -> None:
        try:
            tree = _parser.parse(source, re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(f"{source!r:.100} is no regular expression: {error}") from error
        self.source = source
        self.flags = tree.state.flags | re.DOTALL
        self.names = {number: name for name, number in tree.state.groupdict.items()}
        self.program: list[Instruction] = []
        self._state, self._anys = tree.state, list[int]()
        self._write_all(tree)
        self.program.append(Instruction("match"))
        seen: set[int] = set()
        first = list(self.expand(0, (), seen, at_end=False))
        if any(self.program[at].kind == "match" for at, _ in first):
            raise PatternError(f"{source!r:.100} matches the empty text")
        self._first = [self.program[at].accepts for at, _ in first]
        self._begins: dict[str, bool] = {}
        self.endless = frozenset(at for at in self._anys if at in self._reach(at + 1, through=False))

    def begins(self, char: str) -> bool:
        """Return whether a match may begin with this character."""
        if (known := self._begins.get(char)) is None:
            known = any(accepts is not None and accepts(char) for accepts in self._first)
            if len(self._begins) < MAX_PROGRAM:
                self._begins[char] = known
        return known

    def writes_once(self, first: str, second: str) -> bool:
        """Return whether the pattern sets the groups of these names one after the other, and each of them once."""
        saves = {step.place: at for at, step in enumerate(self.program) if step.kind == "save"}
        numbers = {name: number for number, name in self.names.items()}
        if first not in numbers or second not in numbers:
            return False
        begins = [saves[2 * numbers[name]] for name in (first, second)]
        return saves[2 * numbers[first] + 1] < begins[1] and not self._reach(begins[1] + 1).intersection(begins)

    def _reach(self, at: int, through: bool = True) -> set[int]:
        """Return the instructions that come after this one. through: also those behind a character."""
        waiting, seen = [at], set[int]()
        while waiting:
            if (at := waiting.pop()) in seen or at >= len(self.program):
                continue
            seen.add(at)
            step = self.program[at]
            if step.kind in ("jump", "split"):
                waiting += step.to[: 1 if step.kind == "jump" else 2]
            elif step.kind in ("save", "end") or through:
                waiting.append(at + 1)
        return seen

    def expand(
        self, at: int, saves: Saves, seen: set[int], at_end: bool, place: int = 0
    ) -> Iterator[tuple[int, Saves]]:
        """Yield the char and match instructions that this one leads to, by priority, without those `seen`.

        place: where the text is.
        """
        waiting = [(at, saves)]
        while waiting:
            at, saves = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            step = self.program[at]
            if step.kind == "jump":
                waiting.append((step.to[0], saves))
            elif step.kind == "split":
                waiting += [(step.to[1], saves), (step.to[0], saves)]
            elif step.kind == "save":
                waiting.append((at + 1, (*(pair for pair in saves if pair[0] != step.place), (step.place, place))))
            elif step.kind == "end":
                waiting += [(at + 1, saves)] if at_end else []
            else:
                yield at, saves

    def _write_all(self, nodes: Any) -> None:
        for node in nodes:
            self._write(*node)

    def _write(self, op: Any, value: Any) -> None:
        """Append the instructions of one node."""
        if len(self.program) > MAX_PROGRAM:
            raise PatternError("a regular expression is too long")
        if op in ONE_CHARACTER:
            self._anys += [len(self.program)] if op is _constants.ANY else []
            one = _compiler.compile(_parser.SubPattern(self._state, [(op, value)]), self.flags)
            self.program.append(Instruction("char", one.match))
        elif op is _constants.BRANCH:
            self._write_branches(value[1])
        elif op is _constants.SUBPATTERN and not value[1] and not value[2]:
            self._write_group(value[0], value[3])
        elif op is _constants.MAX_REPEAT or op is _constants.MIN_REPEAT:
            self._write_repeat(value[2], value[0], value[1], op is _constants.MAX_REPEAT)
        elif op is _constants.AT and value in (_constants.AT_END, _constants.AT_END_STRING):
            self.program.append(Instruction("end"))
        else:
            raise PatternError(f"a regular expression has {str(op).lower()}, which is not supported")

    def _write_group(self, number: int | None, nodes: Any) -> None:
        named = number in self.names
        if named:
            self.program.append(Instruction("save", place=2 * (number or 0)))
        self._write_all(nodes)
        if named:
            self.program.append(Instruction("save", place=2 * (number or 0) + 1))

    def _write_branches(self, branches: list[Any]) -> None:
        leaving: list[int] = []
        for index, branch in enumerate(branches):
            split = len(self.program)
            if index < len(branches) - 1:
                self.program.append(Instruction("split"))
            self._write_all(branch)
            if index < len(branches) - 1:
                leaving.append(len(self.program))
                self.program.append(Instruction("split"))
                self.program[split] = Instruction("split", to=(split + 1, len(self.program)))
        for at in leaving:
            self.program[at] = Instruction("jump", to=(len(self.program), 0))

    def _write_repeat(self, nodes: Any, least: int, most: Any, greedy: bool) -> None:
        if least > MAX_PROGRAM:
            raise PatternError("a regular expression is too long")
        for _ in range(least):
            self._write_all(nodes)
        endless = most is _constants.MAXREPEAT
        if not endless and most - least > MAX_PROGRAM:
            raise PatternError("a regular expression is too long")
        splits: list[int] = []
        for _ in range(1 if endless else most - least):
            splits.append(len(self.program))
            self.program.append(Instruction("split"))
            self._write_all(nodes)
        if endless:
            self.program.append(Instruction("jump", to=(splits[0], 0)))
        for at in splits:
            ways = (at + 1, len(self.program))
            self.program[at] = Instruction("split", to=ways if greedy else (ways[1], ways[0]))
