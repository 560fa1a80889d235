"""llguidance: a lexer of derivatives under an Earley parser (github.com/guidance-ai/llguidance). Compiles as it goes, so its limits count
at every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import llguidance
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from tailrace.errors import RowError
from tailrace.grammar.backends.gbnf import as_lark as gbnf_as_lark
from tailrace.grammar.base import Job, not_taken
from tailrace.grammar.check import UnsupportedError, parse_choice, parse_schema, parse_tag, shape
from tailrace.grammar.closing import closing
from tailrace.grammar.position import NO_TOKEN, Position
from tailrace.grammar.schema import check_counts, without_annotations
from tailrace.grammar.tags import as_lark as tag_as_lark
from tailrace.grammar.tags import normal, schemas
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.options import Grammar

# The library's own figures, in words of its documentation: 50k fuel or 20k items take about a millisecond to start, 14k fuel a step.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,  # 20 ms
    "step_lexer_fuel": 200_000,  # 14 ms a step
    "step_max_items": 50_000,  # 2.5 ms a step
    "max_items_in_row": 2_000,
    "max_lexer_states": 20_000,  # of 1 to 2 KiB each, so at most 40 MiB; the library would allow more than ten times as many
    "max_grammar_size": 500_000,
    "verbose_errors": False,  # its complaints go to the client
}
PROOF = 32  # masks of an output that a grammar must get through before it is taken


class LLGuidance:
    """grammar/backends/__init__.py's Backend."""

    # of the lexer's states, which all sequences share; at the limit of their number it is about twice as much
    growth = 16 << 20

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(Words(vocabulary)),
            n_vocab=vocabulary.vocab_size,
            eos_token=list(vocabulary.eos),
            slices=LLTokenizer.json_slices(),
        )

    def compile(self, grammar: Grammar) -> str:
        try:
            with shape(grammar.kind):
                text = unforced(SOURCES[grammar.kind](grammar))
        except ValueError as error:
            raise error if isinstance(error, UnsupportedError) else UnsupportedError(str(error)) from error
        try:
            place = self.load(text).matcher()
            place.allowed()
            closing(place, budget=PROOF, max_masks=PROOF)
        except RowError as error:
            raise UnsupportedError(str(error)) from error
        return text

    def load(self, compiled: str) -> Prototype:
        matcher = LLMatcher(self._tokenizer, compiled, limits=LLParserLimits(**LIMITS), log_level=0)
        if matcher.is_error():
            raise UnsupportedError(complaint(matcher))
        return Prototype(self._vocabulary, matcher)


class Prototype:
    """Compiled: a matcher at its beginning, of which the others are copies. They share what the lexer has found out."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._vocabulary, self._matcher.deep_copy())


class LLGuidanceMatcher(Position):
    """A library matcher that has once met an error or a limit never leaves that state; so it is asked only what can't bring it there."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        super().__init__(vocabulary)
        self._matcher = matcher

    def joins(self, drafts: Sequence[int]) -> bool:
        """grammar/base.py's Batched: what comes after the end is Position's business."""
        return not self.ended and not any(token in self.vocabulary.eos for token in drafts)

    @staticmethod
    def fill_together(jobs: Sequence[Job], threads: int) -> list[Exception | None]:
        walked = [places(job) for job in jobs]
        tables: dict[tuple[int, int], list[tuple[LLMatcher, int]]] = {}
        # the library wants an address and the numbers of rows from there
        for job, along in zip(jobs, walked, strict=True):
            start, size = job.masks.untyped_storage().data_ptr(), job.masks.shape[1] * 4
            for j, place in enumerate(along):
                offset = job.masks.data_ptr() - start + j * size
                tables.setdefault((start + offset % size, size), []).append((place, offset // size))
        for (address, size), rows in tables.items():
            executor(threads).unsafe_compute_mask_ptr(rows, address, size, 1 + max(row for _, row in rows))
        return [complaint_of(job, along) for job, along in zip(jobs, walked, strict=True)]

    def _take(self, token: int) -> bool:
        return self._matcher.try_consume_tokens([token]) == 1

    def _back(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise RowError(f"grammar: {complaint(self._matcher)}")

    def _write(self, mask: torch.Tensor) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.numel() * mask.element_size())
        if self._matcher.is_error():
            raise RowError(f"grammar: {complaint(self._matcher)}")

    def _complete(self) -> bool:
        return self._matcher.is_accepting()

    def _only_end(self) -> bool:
        return self._matcher.is_stopped()

    def _forced_bytes(self) -> bytes:
        return self._matcher.compute_ff_bytes()

    def _twin(self) -> Self:
        return type(self)(self.vocabulary, self._matcher.deep_copy())


class Words:
    """The vocabulary as llguidance.TokenizerWrapper wants it; 0xFF marks what spells no text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id, self.bos_token_id = vocabulary.eos[0], None
        silent = {i for i, data in enumerate(vocabulary.token_bytes) if not data}
        self.special_token_ids = sorted(silent)
        self.tokens = [b"\xff<%d>" % i if i in silent else data for i, data in enumerate(vocabulary.token_bytes)]
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> list[int]:
        return self._vocabulary.cut(text.encode() if isinstance(text, str) else text)[0]


@cache
def executor(threads: int) -> LLExecutor:
    """Its threads live as long as the process. (Matchers of one grammar wait for each other, as they share its lexer.)"""
    return LLExecutor(num_threads=threads)


def places(job: Job) -> list[LLMatcher]:
    """Where each of its rows stands, as far as the drafts are taken. Copies, so that the matcher itself is not moved: now and then the
    library's mask has more tokens after going back than it had before, and drafts must change nothing."""
    assert isinstance(job.matcher, LLGuidanceMatcher)
    walker = job.matcher
    along = [walker._matcher]
    for token in job.drafts:
        walker = walker.fork()
        if not walker.accept(token):
            break
        along.append(walker._matcher)
    return along


def complaint_of(job: Job, along: list[LLMatcher]) -> Exception | None:
    """What is wrong with masks that were filled."""
    if failed := next((place for place in along if place.is_error()), None):
        return RowError(f"grammar: {complaint(failed)}")
    if (taken := len(along) - 1) < len(job.drafts):
        return not_taken(taken, job.drafts[taken])
    return None if job.masks.numpy().any(axis=1).all() else RowError(NO_TOKEN)


def complaint(matcher: LLMatcher) -> str:
    """The library's words, without what it adds about itself."""
    text = matcher.get_error().partition("<state>")[0].strip()
    return " ".join(text.split())[:500] or "a limit of the grammar was met"


# ---- the source of a grammar, by kind, in the library's own form


def unforced(text: str) -> str:
    """Where only one text can come next, the library's masks would let through only the tokens into which the tokenizer would cut
    it, though it accepts others. With this option masks say what is accepted, so that the model chooses how to spell."""
    parts = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    parts[0]["name"] = "all"
    top = {"name": "top", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @all'}
    return json.dumps({"grammars": [top, *parts]})


def options(whitespace: int) -> dict[str, Any]:
    """How it writes JSON. No \\u escapes and no \\/: with them a name could be spelled past what the schema says of it."""
    return {
        "whitespace_flexible": whitespace > 0,
        "whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{whitespace}}}" if whitespace else None,
        "item_separator": ",",
        "key_separator": ":",
        "coerce_one_of": False,
        "lenient": False,
        "json_allowed_escapes": 'nrbtf\\"',
    }


def json_schema(grammar: Grammar) -> str:
    schema = without_annotations(parse_schema(grammar.source or '{"type": "object"}'))
    check_counts(schema)
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=set_options(grammar.whitespace))


def set_options(whitespace: int) -> Any:
    return {key: value for key, value in options(whitespace).items() if value is not None}


def choice(grammar: Grammar) -> str:
    """One terminal, so that the lexer sees all texts at once."""
    texts = (json.dumps(text) for text in parse_choice(grammar.source))
    return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(texts))


def structural_tag(grammar: Grammar) -> str:
    tag = normal(parse_tag(grammar.source), grammar.whitespace)
    for schema in schemas(tag):
        check_counts(schema)
    return llguidance.grammar_from("lark", tag_as_lark(tag, set_options(grammar.whitespace)))


SOURCES = {
    "json_object": json_schema,
    "json_schema": json_schema,
    "regex": lambda grammar: LLMatcher.grammar_from_regex(grammar.source),
    "choice": choice,
    "ebnf": lambda grammar: LLMatcher.grammar_from_lark(gbnf_as_lark(grammar.source)),
    "lark": lambda grammar: LLMatcher.grammar_from_lark(grammar.source),
    "structural_tag": structural_tag,
}
