"""llguidance: a lexer of derivatives under an Earley parser (github.com/guidance-ai/llguidance). Compiles as it goes, so its limits count
at every step."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import torch

from tailrace.errors import DeadEndError, GrammarError, GrammarLimitError
from tailrace.extras import needs
from tailrace.grammar.base import BitmaskJob, not_taken
from tailrace.grammar.bitmasks import Unfinished
from tailrace.grammar.check import UnsupportedError, parse_choice, parse_schema, parse_tag, shape
from tailrace.grammar.completion import closing
from tailrace.grammar.gbnf import as_lark as gbnf_as_lark
from tailrace.grammar.matcher import NO_TOKEN, GrammarMatcher
from tailrace.grammar.schema import exact, patterns_of
from tailrace.grammar.tags import as_lark as tag_as_lark
from tailrace.grammar.tags import normal, schemas
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.options import Grammar

with needs("grammar"):
    import llguidance
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

# What one mask may take. The work for a row of items grows with the square of their number: with 1,000, which an object of 245 properties
# has that may all be left out, it takes up to 60 ms. The library's own limits, 50,000 and 2,000, let one mask take half a second.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,  # 20 ms
    "step_max_items": 4_000,  # 8 ms where all are of one row: they are compared with each other
    "max_items_in_row": 1_000,
    "max_lexer_states": 20_000,  # of 1 to 2 KiB each, so at most 40 MiB; the library would allow more than ten times as many
    "max_grammar_size": 500_000,
    "verbose_errors": False,  # its complaints go to the client
}
# what of Lark is no %json, though it may hold these letters; and %json itself, up to its JSON
LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*|(?P<json>%json\s*)')
BLANKS = ("whitespace_flexible", "whitespace_pattern")
PROOF = 32  # masks of an output that a grammar must get through before it is taken


class Library:
    """What is made of one vocabulary. `compile` runs in a process that may be killed, `load` in the engine's, on any thread."""

    growth = 16 << 20
    """Bytes by which what `load` made may grow while it is used: of the lexer's states, which all sequences share. At the limit of their
    number it is about twice as much."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(Words(vocabulary)),
            n_vocab=vocabulary.vocab_size,
            eos_token=list(vocabulary.eos),
            slices=LLTokenizer.json_slices(),
        )

    def compile(self, grammar: Grammar) -> str:
        """All the work that a bad grammar can make long, and what `load` needs to repeat only work that has been seen to be short.
        Raises UnsupportedError (there is no rule for it here, or the library's complaint), ParameterError."""
        try:
            with shape(grammar.kind):
                text = unforced(SOURCES[grammar.kind](grammar))
        except ValueError as error:
            raise error if isinstance(error, UnsupportedError) else UnsupportedError(plainly(str(error))) from error
        try:
            place = self.load(text).matcher()
            place.allowed()
            closing(place, budget=PROOF, max_masks=PROOF)
        except GrammarError as error:
            raise UnsupportedError(str(error)) from error
        return text

    def load(self, compiled: str) -> Prototype:
        """Of a grammar that `compile` has taken, with an equal vocabulary."""
        matcher = LLMatcher(self._tokenizer, compiled, limits=LLParserLimits(**LIMITS), log_level=0)
        if matcher.is_error():
            raise UnsupportedError(complaint(matcher))
        return Prototype(self._vocabulary, matcher)


class Prototype:
    """Compiled: a matcher at its beginning, of which the others are copies. They share what the lexer has found out."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher
        self.busy: Unfinished | None = None

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._vocabulary, self._matcher.deep_copy())


class LLGuidanceMatcher(GrammarMatcher):
    """A library matcher that has once met an error or a limit never leaves that state; so it is asked only what can't bring it there."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        super().__init__(vocabulary)
        self._matcher = matcher

    def takes(self, token: int) -> bool:
        return not self.ended and self._matcher.validate_tokens([token]) == 1

    def joins(self, drafts: Sequence[int]) -> bool:
        """grammar/base.py's Batched: what comes after the end is GrammarMatcher's business."""
        return not self.apart and not self.ended and not any(token in self.vocabulary.eos for token in drafts)

    @staticmethod
    def fill_together(jobs: Sequence[BitmaskJob], threads: int) -> list[Exception | None]:
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
        taken = self._matcher.try_consume_tokens([token]) == 1
        if not taken and self._matcher.is_error():
            raise GrammarLimitError(complaint(self._matcher))
        return taken

    def _back(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise GrammarLimitError(complaint(self._matcher))

    def _write(self, mask: torch.Tensor) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.numel() * mask.element_size())
        if self._matcher.is_error():
            raise GrammarLimitError(complaint(self._matcher))

    def _complete(self) -> bool:
        return self._matcher.is_accepting()

    def _only_end(self) -> bool:
        return self._matcher.is_stopped()

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


def places(job: BitmaskJob) -> list[LLMatcher]:
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


def complaint_of(job: BitmaskJob, along: list[LLMatcher]) -> Exception | None:
    """What is wrong with masks that were filled."""
    if failed := next((place for place in along if place.is_error()), None):
        return GrammarLimitError(complaint(failed))
    if (taken := len(along) - 1) < len(job.drafts):
        return not_taken(taken, job.drafts[taken])
    return None if job.masks.numpy().any(axis=1).all() else DeadEndError(NO_TOKEN)


def complaint(matcher: LLMatcher) -> str:
    """The library's words, without what it adds about itself."""
    return plainly(matcher.get_error()) or "a limit of the grammar was met"


def plainly(text: str) -> str:
    text = " ".join(text.partition("<state>")[0].replace("<non-verbose/>", "").split())[:500]
    return next((ours for theirs, ours in PLAIN.items() if theirs in text), text)


# what the library says in terms of its own options
PLAIN = {
    "NoExtensionBias": "no text fits it",
    "oneOf constraints are not supported": "oneOf whose branches neither types nor a required property tell apart: a value might fit two",
    "ff_tokens": "too much of it must come in one way: its rules multiply",
}


# ---- the source of a grammar, by kind, in the library's own form


def unforced(text: str) -> str:
    """Where only one text can come next, the library's masks would let through only the tokens into which the tokenizer would cut
    it, though it accepts others. With this option masks say what is accepted, so that the model chooses how to spell."""
    parts = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    parts[0]["name"] = "all"
    top = {"name": "top", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @all'}
    return json.dumps({"grammars": [top, *parts]})


def options(whitespace: int) -> Any:
    """How it writes JSON. No \\u escapes and no \\/: with them a name could be spelled past what the schema says of it."""
    form: dict[str, Any] = {
        "whitespace_flexible": whitespace > 0,
        "item_separator": ",",
        "key_separator": ":",
        "coerce_one_of": False,
        "lenient": False,
        "json_allowed_escapes": 'nrbtf\\"',
    }
    return form | ({"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{whitespace}}}"} if whitespace else {})


def json_schema(grammar: Grammar) -> str:
    schema = kept(parse_schema(grammar.source or '{"type": "object"}'))
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options(grammar.whitespace))


def kept(schema: dict[str, Any]) -> dict[str, Any]:
    """What of it the library keeps: see grammar/schema.py. Raises UnsupportedError."""
    whole = exact(schema)
    if names := [{"type": "string", "pattern": pattern} for pattern in patterns_of(whole)]:
        # a name that can't be spelled would be a dead end behind the comma: the library looks only at what values there are
        told = LLMatcher.grammar_from_json_schema(
            json.dumps({"type": "array", "prefixItems": names, "minItems": len(names)})
        )
        if complaints := LLMatcher.validate_grammar(told):
            raise UnsupportedError(f"patternProperties: {complaints}"[:500])
    return whole


def lark(source: str) -> str:
    """Its %json parts as they are kept; of what they say of the form only blanks."""
    parts, at = [], 0
    for found in LARK.finditer(source):
        if found.lastgroup != "json" or found.start() < at:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(source, found.end())
        except ValueError as error:
            raise UnsupportedError(f"behind %json there is no JSON: {error}") from error
        asked = schema.get("x-guidance") if isinstance(schema, dict) else None
        blanks = {key: asked[key] for key in BLANKS if key in asked} if isinstance(asked, dict) else {}
        whole = kept(parse_schema(source[found.end() : end]))
        form = options(0 if blanks.get("whitespace_flexible") is False else 1) | blanks
        parts += [source[at : found.end()], json.dumps({**whole, "x-guidance": form})]
        at = end
    return LLMatcher.grammar_from_lark("".join([*parts, source[at:]]))


def choice(grammar: Grammar) -> str:
    """One terminal, so that the lexer sees all texts at once."""
    texts = (json.dumps(text) for text in parse_choice(grammar.source))
    return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(texts))


def structural_tag(grammar: Grammar) -> str:
    tag = normal(parse_tag(grammar.source), grammar.whitespace)
    for content in schemas(tag):
        content["json_schema"] = kept(content["json_schema"])
    return llguidance.grammar_from("lark", tag_as_lark(tag, options(grammar.whitespace)))


SOURCES = {
    "json_object": json_schema,
    "json_schema": json_schema,
    "regex": lambda grammar: LLMatcher.grammar_from_regex(grammar.source),
    "choice": choice,
    "ebnf": lambda grammar: LLMatcher.grammar_from_lark(gbnf_as_lark(grammar.source)),
    "lark": lambda grammar: lark(grammar.source),
    "structural_tag": structural_tag,
}
