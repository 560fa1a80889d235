"""Options of a request that have fields of their own, each checked where it is made."""

from __future__ import annotations

from typing import Literal

import msgspec

from tailrace.errors import ParameterError
from tailrace.fields import MAX_SEED, MIN_SEED, conform, shown

MAX_PATTERN = 512  # tokens of a repeated pattern that is looked for
MAX_COUNT = 10_000  # times it may be asked to come
MAX_TABLE = 2**18  # of synthid in transformers' scheme: making one takes about 10 ms of everybody's step


class Watermark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A watermark that the holder of `key` can detect later (sampling/watermark.py).

    Attributes:
        kind: "kgw": the green list of Kirchenbauer et al. (arXiv 2301.10226): a keyed share `gamma` of the vocabulary
            gets +`delta`. "synthid": the two-candidate tournament of Dathathri et al. (Nature 634, 2024), which keeps
            the distribution on average over contexts; where a context comes again, so do its favourites.
        scheme: whose random choices: "tailrace", or "transformers", so that its detectors recognise the text
            (sampling/watermark_transformers.py).
        key: 64-bit secret; of kgw in transformers' scheme its hashing_key. context: how many tokens before seed the
            choice.
        gamma: 0 < γ < 1. delta: 0 < δ ≤ 100. depth: layers of the tournament, 1 … 64.
        keys, sampling_table_size, sampling_table_seed, context_history_size: of synthid in transformers' scheme, as
            there. A key for each layer takes the place of `key` and `depth`; `context` is its ngram_len − 1.
            sampling_table_size: 1 … 2^18.
    """

    kind: Literal["kgw", "synthid"]
    key: int | None = None
    scheme: Literal["tailrace", "transformers"] = "tailrace"
    context: int = 4
    gamma: float = 0.25
    delta: float = 2.0
    depth: int = 30
    keys: tuple[int, ...] = ()
    sampling_table_size: int = 65_536
    sampling_table_seed: int = 0
    context_history_size: int = 1024

    def __post_init__(self) -> None:
        conform(self, "watermark")
        for name, low, high in (
            ("context", 1, 64),
            ("depth", 1, 64),
            ("sampling_table_size", 1, MAX_TABLE),
            ("sampling_table_seed", 0, MAX_SEED),
            ("context_history_size", 1, 16_384),
        ):
            check_whole("watermark", name, getattr(self, name), low, high)
        if self.kind == "synthid" and self.scheme == "transformers":
            self._check_keys()
        else:
            check_whole("watermark", "key", self.key, MIN_SEED, MAX_SEED)
            theirs = (self.keys, self.sampling_table_size, self.sampling_table_seed, self.context_history_size)
            if theirs != ((), 65_536, 0, 1024):
                raise ParameterError(
                    "watermark.keys, sampling_table_size, sampling_table_seed and context_history_size are of "
                    "kind synthid with scheme "
                    "transformers",
                    "watermark",
                )
        if not 0.0 < self.gamma < 1.0:
            raise ParameterError(f"watermark.gamma must be a number in (0, 1), got {self.gamma!r}", "watermark")
        if not 0.0 < self.delta <= 100.0:
            raise ParameterError(f"watermark.delta must be a number in (0, 100], got {self.delta!r}", "watermark")

    def _check_keys(self) -> None:
        if not 1 <= len(self.keys) <= 64:
            raise ParameterError(f"watermark.keys must have 1 to 64 entries, got {len(self.keys)}", "watermark")
        for key in self.keys:
            check_whole("watermark", "keys", key, MIN_SEED, MAX_SEED)
        if self.key is not None or self.depth not in (30, len(self.keys)):
            raise ParameterError(
                "watermark.key and depth have no effect beside keys, which has one for each layer", "watermark"
            )


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End a sequence that goes round in circles: when its last tokens are one pattern, `min_count` times in a row.

    Attributes:
        max_pattern_size, min_pattern_size: tokens of the pattern, 1 … 512. min_count: how often it must come, 2 …
            10,000.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 1

    def __post_init__(self) -> None:
        conform(self, "repetition_detection")
        check_whole("repetition_detection", "max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN)
        check_whole("repetition_detection", "min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size)
        check_whole("repetition_detection", "min_count", self.min_count, 2, MAX_COUNT)


class MarkedSpan(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A span of the text between two markers: what a model thinks, or a tool call.

    Attributes:
        opening, closing: the markers, as text; without a closing one it lasts to the end. opened: the prompt has opened
            it already. once: behind it the markers mean nothing. until: opening markers of other spans, which end it.
        resumes: behind such a span it goes on.
    """

    opening: str
    closing: str | None
    opened: bool = False
    once: bool = False
    until: tuple[str, ...] = ()
    resumes: bool = False


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End the model's thinking when it has taken so many tokens, by forcing the tokens that close it; then it goes on
    by itself.

    Attributes:
        max_tokens: of one thought, the markers not counted; ≥ 0. span: how the model marks it. closing_token_ids: what
            is forced.
        tool_format: how the model writes tool calls (a key of text.tool_parsers.TOOL_FORMATS), "" if it writes none. In
            them the markers mean nothing.
        calls: what a call within a thought is: "text" of it, its "end", or "inside", a call after which the thought
            goes on (the call is not counted). also: other spellings of the span's two markers.
    """

    max_tokens: int
    span: MarkedSpan
    closing_token_ids: tuple[int, ...]
    tool_format: str = ""
    calls: Literal["text", "end", "inside"] = "text"
    also: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        conform(self, "thinking_token_budget")
        check_whole("thinking_token_budget", "", self.max_tokens, 0, 2**31 - 1)
        if self.span.closing is None or not self.closing_token_ids:
            raise ParameterError(
                "thinking_token_budget needs a marker that closes the thinking", "thinking_token_budget"
            )
        if not all(marker for pair in ((self.span.opening, self.span.closing), *self.also) for marker in pair):
            raise ParameterError("thinking_token_budget: a marker must not be empty", "thinking_token_budget")


GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "ebnf", "lark", "structural_tag"]
MAX_GRAMMAR = 1 << 20  # characters of a grammar's source
MAX_WHITESPACE = 32


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the output must be: each token is drawn from those with which it can still become a word of this language.

    Attributes:
        kind: json_object: any JSON object. json_schema: JSON that validates. regex: the whole output matches. choice:
            one of several texts. ebnf: GBNF, as llama.cpp has it. lark: Lark's syntax, as llguidance has it.
            structural_tag: free text with tagged spans that must fit schemas, in xgrammar's format.
        source: the schema, pattern, JSON list of texts, grammar or tag, as text; "" for json_object.
        whitespace: JSON may have so many characters of it in a row between two tokens, 0 … 32. The bound is what keeps
            a model from writing blanks for ever.
        after: the span of the text that is free: what the model thinks. The grammar begins after its closing marker.
            opening_token_id: what may also come first, where the model opens the span by itself. entry_token_id: what
            also ends the free part, as the first token of the grammar: the marker of a tool call.
        close_in_time: shortly before max_tokens, only what closes the output is let through, so that it ends as a valid
            one.
    """

    kind: GrammarKind
    source: str = ""
    whitespace: int = 8
    after: MarkedSpan | None = None
    opening_token_id: int | None = None
    entry_token_id: int | None = None
    close_in_time: bool = False

    def __post_init__(self) -> None:
        conform(self, "grammar")
        check_whole("grammar", "whitespace", self.whitespace, 0, MAX_WHITESPACE)
        if len(self.source) > MAX_GRAMMAR:
            raise ParameterError(
                f"a grammar must have at most {MAX_GRAMMAR} characters, got {len(self.source)}", "grammar"
            )
        if self.after is not None and self.after.closing is None:
            raise ParameterError("a grammar begins after a span only where a marker closes it", "grammar")


Rule = Literal["exact", "rejection", "block", "typical"]
MAX_DRAFTS = 32


class Speculation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far the engine may guess ahead for one request.

    Attributes:
        max_drafts: tokens drafted per step at most, 0 … 32; 0: none; None leaves it to the engine. What must come next
            in any case (forced tokens, text that a grammar leaves no choice about) is computed ahead all the same.
        rule: how guesses are verified (sampling/verify.py); None: exact where a drafter guesses tokens, rejection where
            it draws them from distributions. "typical" changes the distribution, the others don't.
    """

    max_drafts: int | None = None
    rule: Rule | None = None

    def __post_init__(self) -> None:
        conform(self, "speculation")
        if self.max_drafts is not None:
            check_whole("speculation", "max_drafts", self.max_drafts, 0, MAX_DRAFTS)


def check_whole(field: str, part: str, value: object, low: int, high: int) -> None:
    """Raise ParameterError unless `value` is an integer in low … high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        name = f"{field}.{part}" if part else field
        raise ParameterError(f"{name} must be an integer in [{low}, {high}], got {shown(value)}", field)
