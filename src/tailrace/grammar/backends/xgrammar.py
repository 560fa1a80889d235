"""xgrammar: a pushdown automaton whose masks are largely worked out when it compiles (Dong et al., arXiv 2411.15100)."""

from __future__ import annotations

import json
import re
from typing import Any, Self

import torch
import xgrammar

from tailrace.grammar.check import UnsupportedError, parse_choice, parse_schema, parse_tag, shape
from tailrace.grammar.position import Position
from tailrace.grammar.schema import check_counts, check_for_xgrammar, check_pattern, narrow, without_annotations
from tailrace.grammar.tags import normal, schemas
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.options import Grammar


class XGrammar:
    """grammar/backends/__init__.py's Backend."""

    growth = 0  # all is worked out beforehand

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.eos),
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def compile(self, grammar: Grammar) -> str:
        if grammar.kind not in KINDS:
            raise UnsupportedError(f"the kind {grammar.kind}")
        try:
            with shape(grammar.kind):
                return KINDS[grammar.kind](self._compiler, grammar).serialize_json()
        except MemoryError:
            raise
        except RuntimeError as error:  # all that the library raises
            if "bad_alloc" in str(error):
                raise MemoryError from error
            raise UnsupportedError(complaint(error)) from error

    def load(self, compiled: str) -> Automaton:
        return Automaton(self._vocabulary, xgrammar.CompiledGrammar.deserialize_json(compiled, self._info))


class Automaton:
    """Compiled."""

    def __init__(self, vocabulary: Vocabulary, compiled: xgrammar.CompiledGrammar) -> None:
        self._vocabulary, self._compiled = vocabulary, compiled

    def matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(self._vocabulary, xgrammar.GrammarMatcher(self._compiled))


class XGrammarMatcher(Position):
    def __init__(self, vocabulary: Vocabulary, matcher: xgrammar.GrammarMatcher) -> None:
        super().__init__(vocabulary)
        self._matcher = matcher

    def _take(self, token: int) -> bool:
        if not self.vocabulary.token_bytes[token] and not self._named(token):
            return False  # the library would refuse it too, and write so on stderr each time
        return self._matcher.accept_token(token)

    def _named(self, token: int) -> bool:
        """Does the grammar ask here for this very token?"""
        mask = torch.zeros(self.vocabulary.words, dtype=torch.int32)
        self._write(mask)
        return bool(int(mask[token // 32]) >> (token % 32) & 1)

    def _back(self, count: int) -> None:
        self._matcher.rollback(count)

    def _write(self, mask: torch.Tensor) -> None:
        # it leaves the mask as it is where everything is allowed
        mask.fill_(-1)
        self._matcher.fill_next_token_bitmask(mask.view(1, -1))
        if spare := self.vocabulary.vocab_size % 32:
            mask[-1] &= (1 << spare) - 1

    def _complete(self) -> bool:
        return self._matcher.is_completed()

    def _only_end(self) -> bool:
        mask = torch.zeros(self.vocabulary.words, dtype=torch.int32)
        self._write(mask)
        for token in self.vocabulary.eos:
            mask[token // 32] &= ~torch.tensor(1 << (token % 32), dtype=torch.int64).to(torch.int32)
        return not mask.any()

    def _forced_bytes(self) -> bytes:
        try:
            return self._matcher.find_jump_forward_string().encode()
        except UnicodeDecodeError:  # within a character
            return b""

    def _twin(self) -> Self:
        return type(self)(self.vocabulary, self._matcher.fork())


def complaint(error: Exception) -> str:
    """The library's words, without the time and the place in its sources."""
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error).strip())
    return " ".join(text.split())[:500]


# ---- the source of a grammar, by kind


def json_schema(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> Any:
    schema = without_annotations(parse_schema(grammar.source or '{"type": "object"}'))
    check_for_xgrammar(schema)
    check_counts(schema)
    narrow(schema)
    if grammar.whitespace:
        space: dict[str, Any] = {"any_whitespace": True, "max_whitespace_cnt": grammar.whitespace}
    else:
        space = {"any_whitespace": False, "separators": (",", ":")}
    return compiler.compile_json_schema(json.dumps(schema), strict_mode=False, **space)


def regex(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> Any:
    return compiler.compile_regex(check_pattern(grammar.source, "the regex", dot=r"[^\n]"))


def choice(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> Any:
    texts = " | ".join(f'"{"".join(map(escaped, text))}"' for text in parse_choice(grammar.source))
    return compiler.compile_grammar(f"root ::= {texts}")


def escaped(character: str) -> str:
    """A character within quotes of GBNF."""
    return character if character.isascii() and character.isalnum() else f"\\U{ord(character):08x}"


def structural_tag(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> Any:
    tag = normal(parse_tag(grammar.source), grammar.whitespace)
    for schema in schemas(tag):
        check_for_xgrammar(schema)
        check_counts(schema)
        narrow(schema)
    return compiler.compile_structural_tag(json.dumps(tag))


KINDS = {
    "json_object": json_schema,
    "json_schema": json_schema,
    "regex": regex,
    "choice": choice,
    "ebnf": lambda compiler, grammar: compiler.compile_grammar(grammar.source),
    "structural_tag": structural_tag,
}
