"""Grammars with llguidance: a lexer of derivatives under an Earley parser (github.com/guidance-ai/llguidance). It
compiles lazily, so its limits count at every step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, Self

import torch

from tailrace.errors import DeadEndError, GrammarError, GrammarLimitError
from tailrace.extras import needs
from tailrace.grammar.base import BitmaskJob, not_taken
from tailrace.grammar.check import UnsupportedError, shape_errors
from tailrace.grammar.completion import completion_search, shortest_completion
from tailrace.grammar.filling import UnfinishedBitmasks
from tailrace.grammar.jump_forward import forced_tokens
from tailrace.grammar.llguidance_sources import SOURCES, unforced
from tailrace.grammar.matcher import NO_TOKEN, GrammarMatcher
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.options import Grammar

with needs("grammar"):
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

# Limits of one mask. The work for a row of items grows with the square of their number. With 1,000 items (an object of
# 245 optional properties) a mask takes up to 60 ms. The library's own limits, 50,000 and 2,000, allow half a second.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,  # 20 ms
    "step_max_items": 4_000,  # 8 ms if all are in one row, because they are compared with each other
    "max_items_in_row": 1_000,
    # of 1 to 2 KiB each, so at most 40 MiB; the library's default is more than ten times as many
    "max_lexer_states": 20_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,  # its messages go to the client
}
TRIAL_MASKS = 32  # tokens of a trial output, and masks for it, that a grammar must get through before it is accepted


class GrammarCompiler:
    """Compiles grammars for one vocabulary. `compile` runs in a process that may be killed; `load` runs in the engine's
    process, on any thread."""

    growth = 16 << 20
    """Bytes by which a loaded grammar may grow in use: the lexer's states, which all its sequences share. At the limit
    of their number it is about twice as much."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(TokenTable(vocabulary)),
            n_vocab=vocabulary.vocab_size,
            eos_token=list(vocabulary.eos),
            slices=LLTokenizer.json_slices(),
        )

    def compile(self, grammar: Grammar) -> str:
        """Do all the work that a bad grammar can make long, and return what `load` needs to repeat only work that was
        seen to be short.

        Raises:
            UnsupportedError: the grammar is not supported here, or the library's message.
            ParameterError: the source is invalid.
        """
        try:
            with shape_errors(grammar.kind):
                text = unforced(SOURCES[grammar.kind](grammar))
        except ValueError as error:
            raise (
                error if isinstance(error, UnsupportedError) else UnsupportedError(readable_error(str(error)))
            ) from error
        try:
            place = self.load(text).matcher()
            place.allowed()
            shortest_completion(place, budget=TRIAL_MASKS, max_masks=TRIAL_MASKS)
        except GrammarError as error:
            raise UnsupportedError(str(error)) from error
        return text

    def load(self, compiled: str) -> CompiledGrammar:
        """Load a grammar that `compile` has accepted, with an equal vocabulary."""
        matcher = LLMatcher(self._tokenizer, compiled, limits=LLParserLimits(**LIMITS), log_level=0)
        if matcher.is_error():
            raise UnsupportedError(error_text(matcher))
        return CompiledGrammar(self._vocabulary, matcher)


class CompiledGrammar:
    """A matcher at the start of the grammar. All other matchers are copies of it, and share the lexer's states."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher
        self.busy: UnfinishedBitmasks | None = None

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._vocabulary, self._matcher.deep_copy())


class LLGuidanceMatcher(GrammarMatcher):
    """A library matcher that has met an error or a limit stays in that state for ever. So it is never asked anything
    that could cause one."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        super().__init__(vocabulary)
        self._matcher = matcher

    def takes(self, token: int) -> bool:
        return not self.ended and self._matcher.validate_tokens([token]) == 1

    def forced(self, count: int, within_s: float) -> list[int]:
        return forced_tokens(self, count, within_s)

    def completion(self, budget: int, max_masks: int) -> Generator[None, None, list[int] | None]:
        return completion_search(self, budget, max_masks)

    def can_batch(self, drafts: Sequence[int]) -> bool:
        """See base.Batched. EOS is handled by GrammarMatcher, not by the library."""
        return not self.slow and not self.ended and not any(token in self.vocabulary.eos for token in drafts)

    @staticmethod
    def fill_together(jobs: Sequence[BitmaskJob], threads: int) -> list[Exception | None]:
        walked = [matchers_along_drafts(job) for job in jobs]
        tables: dict[tuple[int, int], list[tuple[LLMatcher, int]]] = {}
        # the library wants an address, and row numbers counted from there
        for job, along in zip(jobs, walked, strict=True):
            start, size = job.masks.untyped_storage().data_ptr(), job.masks.shape[1] * 4
            for j, place in enumerate(along):
                offset = job.masks.data_ptr() - start + j * size
                tables.setdefault((start + offset % size, size), []).append((place, offset // size))
        for (address, size), rows in tables.items():
            executor(threads).unsafe_compute_mask_ptr(rows, address, size, 1 + max(row for _, row in rows))
        return [fill_error(job, along) for job, along in zip(jobs, walked, strict=True)]

    def _take(self, token: int) -> bool:
        taken = self._matcher.try_consume_tokens([token]) == 1
        if not taken and self._matcher.is_error():
            raise GrammarLimitError(error_text(self._matcher))
        return taken

    def _back(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise GrammarLimitError(error_text(self._matcher))

    def _write(self, mask: torch.Tensor) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.numel() * mask.element_size())
        if self._matcher.is_error():
            raise GrammarLimitError(error_text(self._matcher))

    def _complete(self) -> bool:
        return self._matcher.is_accepting()

    def _only_end(self) -> bool:
        return self._matcher.is_stopped()

    def _twin(self) -> Self:
        return type(self)(self.vocabulary, self._matcher.deep_copy())


class TokenTable:
    """The vocabulary as llguidance.TokenizerWrapper wants it. 0xFF marks tokens without text."""

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
    """The library's threads, which live as long as the process. (Matchers of one grammar wait for each other, since
    they share its lexer.)"""
    return LLExecutor(num_threads=threads)


def matchers_along_drafts(job: BitmaskJob) -> list[LLMatcher]:
    """The matcher's state at each row, as far as the drafts are accepted. These are copies, so that the matcher itself
    does not move: after a rollback the library's mask sometimes has more tokens than before, and drafts must change
    nothing."""
    assert isinstance(job.matcher, LLGuidanceMatcher)
    walker = job.matcher
    along = [walker._matcher]
    for token in job.drafts:
        walker = walker.fork()
        if not walker.accept(token):
            break
        along.append(walker._matcher)
    return along


def fill_error(job: BitmaskJob, along: list[LLMatcher]) -> Exception | None:
    """The error of masks that were filled, or None."""
    if failed := next((place for place in along if place.is_error()), None):
        return GrammarLimitError(error_text(failed))
    if (taken := len(along) - 1) < len(job.drafts):
        return not_taken(taken, job.drafts[taken])
    return None if job.masks.numpy().any(axis=1).all() else DeadEndError(NO_TOKEN)


def error_text(matcher: LLMatcher) -> str:
    """The library's message, without details about the library itself."""
    return readable_error(matcher.get_error()) or "a limit of the grammar was met"


def readable_error(text: str) -> str:
    text = " ".join(text.partition("<state>")[0].replace("<non-verbose/>", "").split())[:500]
    return next((ours for theirs, ours in READABLE_ERRORS.items() if theirs in text), text)


# the library's own terms → the request's
READABLE_ERRORS = {
    "NoExtensionBias": "no text fits it",
    "oneOf constraints are not supported": "oneOf whose branches neither types nor a required property tell apart: "
    "a value might fit two",
    "ff_tokens": "too much of it must come in one way: its rules multiply",
}
