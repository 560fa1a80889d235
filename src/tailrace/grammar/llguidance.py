"""Grammars with llguidance: a lexer of derivatives under an Earley parser (github.com/guidance-ai/llguidance). It
compiles lazily, so its limits count at every step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import cache, partial
from threading import Lock
from typing import Any, Self

import numpy
import torch

from tailrace.base.extras import require_extra
from tailrace.errors import DeadEndError, GrammarError, GrammarLimitError
from tailrace.grammar.base import BitmaskJob, not_taken
from tailrace.grammar.check import UnsupportedError, shape_errors
from tailrace.grammar.completion import completion_search, shortest_completion
from tailrace.grammar.fields import terminal_grammars, with_field
from tailrace.grammar.filling import UnfinishedBitmasks
from tailrace.grammar.jump_forward import forced_tokens
from tailrace.grammar.llguidance_errors import error_text, readable_error
from tailrace.grammar.llguidance_sources import SOURCES, disable_forcing
from tailrace.grammar.matcher import NO_TOKEN, GrammarMatcher
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar

with require_extra("grammar"):
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
REPLAYED = 32  # tokens that a new lexer reads again in one step
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
                text = disable_forcing(SOURCES[grammar.kind](grammar))
        except ValueError as error:
            raise (
                error if isinstance(error, UnsupportedError) else UnsupportedError(readable_error(str(error)))
            ) from error
        try:
            place = self.load(text).matcher()
            place.get_allowed()
            shortest_completion(place, budget=TRIAL_MASKS, max_masks=TRIAL_MASKS)
        except (GrammarError, UnsupportedError) as error:
            raise UnsupportedError(with_field(grammar, str(error))) from error
        for field, alone in terminal_grammars(grammar):
            matcher = self._start_matcher(alone)
            matcher.compute_bitmask()
            if matcher.is_error():  # elsewhere the library would notice that no text fits at the terminal's place only
                raise UnsupportedError(f"{field}: {error_text(matcher)}")
        return text

    def load(self, compiled: str) -> CompiledGrammar:
        """Load a grammar that `compile` has accepted, with an equal vocabulary."""
        found = CompiledGrammar(self._vocabulary, partial(self._start_matcher, compiled))
        found.start()
        return found

    def _start_matcher(self, compiled: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, compiled, limits=LLParserLimits(**LIMITS), log_level=0)
        if matcher.is_error():
            raise UnsupportedError(error_text(matcher))
        return matcher


class CompiledGrammar:
    """A matcher at the start of the grammar. All other matchers are copies of it, and share the lexer's states. After
    an error or at the limit of its states a lexer is of no use to any of them, and the start is loaded again."""

    def __init__(self, vocabulary: Vocabulary, load: Callable[[], LLMatcher]) -> None:
        self._vocabulary, self._load, self._lock = vocabulary, load, Lock()
        self._start: LLMatcher | None = None
        self._first: list[int] = []  # a token that may begin an output
        self.busy: UnfinishedBitmasks | None = None

    def matcher(self) -> LLGuidanceMatcher:
        start = self.start()
        return LLGuidanceMatcher(self._vocabulary, self, start, start.deep_copy())

    def start(self) -> LLMatcher:
        """Return the matcher at the start."""
        with self._lock:
            if self._start is None:
                self._start = self._load()
                self._first = [*numpy.flatnonzero(numpy.frombuffer(self._start.compute_logit_bias(), numpy.uint8))[:1]]
            return self._start

    def is_usable(self, start: LLMatcher) -> bool:
        """Return False if the lexer of this start is full: then the library takes no token, mostly without an error."""
        with self._lock:
            return self._start is start and start.validate_tokens(self._first) == len(self._first)

    def discard(self, start: LLMatcher | None = None) -> None:
        """Stop using this start; None: the current one."""
        with self._lock:
            if start is None or self._start is start:
                self._start = None


class LLGuidanceMatcher(GrammarMatcher):
    """A matcher of the library. After an error or a limit a library matcher stays in that state for ever. So it is
    never called in a way that could cause an error. After a limit it is made again with a new lexer, since neighbours
    fill the old one."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        grammar: CompiledGrammar,
        start: LLMatcher,
        matcher: LLMatcher,
        tokens: Sequence[int] = (),
    ) -> None:
        super().__init__(vocabulary)
        self._grammar, self._start, self._matcher, self._tokens = grammar, start, matcher, list(tokens)

    def takes(self, token: int) -> bool:
        return not self.ended and self._retry_lexers(lambda: self._matcher.validate_tokens([token]) == 1)

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
            get_executor(threads).unsafe_compute_mask_ptr(rows, address, size, 1 + max(row for _, row in rows))
        return [fill_error(job, along) for job, along in zip(jobs, walked, strict=True)]

    def renew_lexer(self, alone: bool) -> None:
        """Go to the same place with another lexer: the one that neighbours went to, or, `alone`, a new one."""
        self._grammar.discard(None if alone else self._start)
        self._start = self._grammar.start()
        self._matcher = self._start.deep_copy()
        for i in range(0, len(self._tokens), REPLAYED):
            self._matcher.compute_bitmask()  # a step begins: the library limits the work of each step
            self._matcher.try_consume_tokens(self._tokens[i : i + REPLAYED])

    def _retry_lexers(self, act: Callable[[], bool]) -> bool:
        """Run `act`. If it fails because the lexer is full, run it with another lexer, and then with a new one.

        Raises:
            GrammarLimitError: the work is too much for a new lexer as well.
        """
        for alone in (False, True):
            done = act()
            if done or (not self._matcher.is_error() and self._grammar.is_usable(self._start)):
                return done
            self.renew_lexer(alone)
        done = act()
        if self._matcher.is_error():
            self._grammar.discard(self._start)
            raise GrammarLimitError(error_text(self._matcher))
        return done

    def _take_token(self, token: int) -> bool:
        taken = self._retry_lexers(lambda: self._matcher.try_consume_tokens([token]) == 1)
        if taken:
            self._tokens.append(token)
        return taken

    def _roll_back(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise GrammarLimitError(error_text(self._matcher))
        del self._tokens[len(self._tokens) - count :]

    def _write_mask(self, mask: torch.Tensor) -> None:
        self._retry_lexers(lambda: fill_row(self._matcher, mask))

    def _is_complete(self) -> bool:
        return self._matcher.is_accepting()

    def _only_end(self) -> bool:
        return self._matcher.is_stopped()

    def _copy_matcher(self) -> Self:
        return type(self)(self.vocabulary, self._grammar, self._start, self._matcher.deep_copy(), self._tokens)


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
def get_executor(threads: int) -> LLExecutor:
    """Return the library's threads, which live as long as the process. (Matchers of one grammar wait for each other,
    since they share its lexer.)"""
    return LLExecutor(num_threads=threads)


def matchers_along_drafts(job: BitmaskJob) -> list[LLMatcher]:
    """Return the matcher's state at each row, as far as the drafts are accepted. These are copies, so that the matcher
    itself does not move: after a rollback the library's mask sometimes has more tokens than before, and drafts must
    change nothing."""
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
    """Return the error of masks that were filled, or None. Masks that met a limit are filled once more with a new
    lexer."""
    if any(place.is_error() for place in along):
        try:
            along = refill_masks(job)
        except GrammarLimitError as error:
            return error
    if (taken := len(along) - 1) < len(job.drafts):
        return not_taken(taken, job.drafts[taken])
    return None if job.masks.numpy().any(axis=1).all() else DeadEndError(NO_TOKEN)


def refill_masks(job: BitmaskJob) -> list[LLMatcher]:
    """Fill the masks of a job with another lexer. Raises GrammarLimitError."""
    assert isinstance(job.matcher, LLGuidanceMatcher)
    for alone in (False, True):
        job.matcher.renew_lexer(alone)
        along = matchers_along_drafts(job)
        failed = [place for place, mask in zip(along, job.masks, strict=False) if not fill_row(place, mask)]
        if not failed:
            return along
    raise GrammarLimitError(error_text(failed[0]))


def fill_row(matcher: LLMatcher, mask: torch.Tensor) -> bool:
    """Fill a mask. False after an error."""
    matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.numel() * mask.element_size())
    return not matcher.is_error()
