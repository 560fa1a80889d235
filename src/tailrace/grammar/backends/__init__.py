"""The libraries, by name: where their class is. Imported when first needed: xgrammar takes a second or two."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from tailrace.grammar.base import Compiled
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.options import Grammar


class Backend(Protocol):
    """One library with one vocabulary. `compile` runs in a process that may be killed, `load` in the engine's, on any thread."""

    growth: int
    """Bytes by which what `load` made may grow while it is used."""

    def compile(self, grammar: Grammar) -> str:
        """All the work that a bad grammar can make long, and what `load` needs to repeat none of it, or only work that has been seen to
        be short. Raises UnsupportedError (what the library has no rule for, or its complaint), ParameterError."""
        ...

    def load(self, compiled: str) -> Compiled:
        """Of a grammar that `compile` has taken, with an equal vocabulary."""
        ...


TABLE = {
    "llguidance": "tailrace.grammar.backends.llguidance:LLGuidance",
    "xgrammar": "tailrace.grammar.backends.xgrammar:XGrammar",
}
# xgrammar reads GBNF itself, but has no limit to the work of one mask, which an ambiguous grammar makes nearly a second
FIRST = {"ebnf": "llguidance"}


def names(grammar: Grammar, default: str) -> list[str]:
    """The backends to be asked, in this order."""
    if grammar.backend != "auto":
        return [grammar.backend]
    first = FIRST.get(grammar.kind, default)
    return [first, *(name for name in TABLE if name != first)]


def make(name: str, vocabulary: Vocabulary) -> Backend:
    """Takes seconds at the first call of a process."""
    module, _, attribute = TABLE[name].partition(":")
    return getattr(import_module(module), attribute)(vocabulary)
