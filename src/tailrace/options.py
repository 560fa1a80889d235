"""Options of a request that have fields of their own, each checked where it is made."""

from __future__ import annotations

from typing import Literal

import msgspec

from tailrace.errors import ParameterError
from tailrace.ranges import MAX_SEED, MIN_SEED, shown

MAX_PATTERN = 512  # tokens of a repeated pattern that is looked for
MAX_COUNT = 10_000  # times it may be asked to come


class Watermark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A watermark that the holder of `key` can detect later (sampling/watermark.py).

    Attributes:
        kind: "kgw": the green list of Kirchenbauer et al. (arXiv 2301.10226): a keyed share `gamma` of the vocabulary gets +`delta`.
            "synthid": the two-candidate tournament of Dathathri et al. (Nature 634, 2024), which keeps the distribution on
            average over contexts; where a context comes again, so do its favourites.
        key: 64-bit secret. context: how many tokens before seed the choice. gamma: 0 < γ < 1. delta: 0 < δ ≤ 100.
        depth: layers of the tournament, 1 … 64.
    """

    kind: Literal["kgw", "synthid"]
    key: int
    context: int = 4
    gamma: float = 0.25
    delta: float = 2.0
    depth: int = 30

    def __post_init__(self) -> None:
        for name, low, high in (("key", MIN_SEED, MAX_SEED), ("context", 1, 64), ("depth", 1, 64)):
            check_whole("watermark", name, getattr(self, name), low, high)
        if not 0.0 < self.gamma < 1.0:
            raise ParameterError(f"watermark.gamma must be a number in (0, 1), got {self.gamma!r}", "watermark")
        if not 0.0 < self.delta <= 100.0:
            raise ParameterError(f"watermark.delta must be a number in (0, 100], got {self.delta!r}", "watermark")


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End a sequence that goes round in circles: when its last tokens are one pattern, `min_count` times in a row.

    Attributes:
        max_pattern_size, min_pattern_size: tokens of the pattern, 1 … 512. min_count: how often it must come, 2 … 10,000.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 1

    def __post_init__(self) -> None:
        check_whole("repetition_detection", "max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN)
        check_whole("repetition_detection", "min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size)
        check_whole("repetition_detection", "min_count", self.min_count, 2, MAX_COUNT)


class Stretch(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A stretch of the text between two markers: what a model thinks, or a tool call.

    Attributes:
        opening, closing: the markers, as text; without a closing one it lasts to the end. opened: the prompt has opened it already.
    """

    opening: str
    closing: str | None
    opened: bool = False


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End the model's thinking when it has taken so many tokens, by forcing the tokens that close it; then it goes on by itself.

    Attributes:
        max_tokens: of one thought, the markers not counted; ≥ 0. stretch: how the model marks it. closing_token_ids: what is forced.
        outside: other stretches, in which the markers mean nothing.
    """

    max_tokens: int
    stretch: Stretch
    closing_token_ids: tuple[int, ...]
    outside: tuple[Stretch, ...] = ()

    def __post_init__(self) -> None:
        check_whole("thinking_token_budget", "", self.max_tokens, 0, 2**31 - 1)
        if self.stretch.closing is None or not self.closing_token_ids:
            raise ParameterError(
                "thinking_token_budget needs a marker that closes the thinking", "thinking_token_budget"
            )


GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "ebnf", "lark", "structural_tag"]
GrammarBackend = Literal["auto", "xgrammar", "llguidance"]
MAX_GRAMMAR = 1 << 20  # characters of a grammar's source
MAX_WHITESPACE = 32


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the output must be: each token is drawn from those with which it can still become a word of this language.

    Attributes:
        kind: json_object: any JSON object. json_schema: JSON that validates. regex: the whole output matches. choice: one of several
            texts. ebnf: GBNF, as llama.cpp has it. lark: Lark's syntax, as llguidance has it. structural_tag: free text with tagged
            stretches that must fit schemas, in xgrammar's format.
        source: the schema, pattern, JSON list of texts, grammar or tag, as text; "" for json_object.
        backend: which library matches; "auto" takes the first that can.
        whitespace: JSON may have so many characters of it in a row between two tokens, 0 … 32. The bound is what keeps a model from
            writing blanks for ever.
        after: the stretch of the text that is free: what the model thinks. The grammar begins after its closing marker. opening_token_id:
            what may also come first, where the model opens the stretch by itself.
        close_in_time: shortly before max_tokens, only what closes the output is let through, so that it ends as a valid one.
    """

    kind: GrammarKind
    source: str = ""
    backend: GrammarBackend = "auto"
    whitespace: int = 8
    after: Stretch | None = None
    opening_token_id: int | None = None
    close_in_time: bool = False

    def __post_init__(self) -> None:
        check_whole("grammar", "whitespace", self.whitespace, 0, MAX_WHITESPACE)
        if len(self.source) > MAX_GRAMMAR:
            raise ParameterError(
                f"a grammar must have at most {MAX_GRAMMAR} characters, got {len(self.source)}", "grammar"
            )
        if self.after is not None and self.after.closing is None:
            raise ParameterError("a grammar begins after a stretch only where a marker closes it", "grammar")


Rule = Literal["exact", "rejection", "block", "typical"]
MAX_DRAFTS = 32


class Speculation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far the engine may guess ahead for one request.

    Attributes:
        max_drafts: tokens drafted per step at most, 0 … 32; 0: none; None leaves it to the engine. What must come next in any case (forced
            tokens, text that a grammar leaves no choice about) is computed ahead all the same.
        rule: how guesses are verified (sampling/verify.py); None: exact where a drafter guesses tokens, rejection where it draws them
            from distributions. "typical" changes the distribution, the others don't.
    """

    max_drafts: int | None = None
    rule: Rule | None = None

    def __post_init__(self) -> None:
        if self.max_drafts is not None:
            check_whole("speculation", "max_drafts", self.max_drafts, 0, MAX_DRAFTS)


def check_whole(field: str, part: str, value: object, low: int, high: int) -> None:
    """Raise ParameterError unless `value` is an integer in low … high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        name = f"{field}.{part}" if part else field
        raise ParameterError(f"{name} must be an integer in [{low}, {high}], got {shown(value)}", field)
