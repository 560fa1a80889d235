"""Options of a request that have fields of their own, each checked where it is made."""

from __future__ import annotations

from typing import Literal

import msgspec

from tailrace.errors import ParameterError, format_json
from tailrace.request.fields import MAX_SEED, MIN_SEED, conform_fields, repr_value

MAX_PATTERN = 512  # tokens of the longest repeated pattern
MAX_COUNT = 10_000  # the most repetitions in a request
MAX_TABLE = 2**18  # of synthid in transformers' scheme; making one delays all requests by 10 ms


class Watermark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A watermark that the holder of `key` can detect later (sampling/watermark.py).

    Attributes:
        kind: "kgw" is the green list of Kirchenbauer et al. (arXiv 2301.10226). A keyed share `gamma` of the vocabulary
            gets +`delta`. "synthid" is the two-candidate tournament of Dathathri et al. (Nature 634, 2024). It keeps
            the distribution on average over contexts. In a repeated context it favours the same tokens again.
        scheme: the random choices: "tailrace", or "transformers". The latter's detectors then recognise the text
            (sampling/watermark_transformers.py).
        key: 64-bit secret. For kgw in transformers' scheme it is the hashing_key.
        context: number of tokens before a token that seed its choice.
        gamma: 0 < γ < 1.
        delta: 0 < δ ≤ 100.
        depth: layers of the tournament, 1 … 64.
        keys: in transformers' synthid, a key for each layer. It replaces `key` and `depth`. `context` is the ngram_len
            − 1.
        sampling_table_size, sampling_table_seed, context_history_size: of transformers' synthid, with its meaning. The
            table has 1 … 2^18 entries.
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
        conform_fields(self, "watermark")
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
            raise ParameterError(
                f"watermark.gamma must be a number in (0, 1), got {format_json(self.gamma)}", "watermark"
            )
        if not 0.0 < self.delta <= 100.0:
            raise ParameterError(
                f"watermark.delta must be a number in (0, 100], got {format_json(self.delta)}", "watermark"
            )

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
    """A rule that ends a sequence in a loop: its last tokens are one pattern, `min_count` times in a row.

    Attributes:
        max_pattern_size, min_pattern_size: tokens of the pattern, 1 … 512.
        min_count: the number of repetitions, 2 … 10,000.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 1

    def __post_init__(self) -> None:
        conform_fields(self, "repetition_detection")
        check_whole("repetition_detection", "max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN)
        check_whole("repetition_detection", "min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size)
        check_whole("repetition_detection", "min_count", self.min_count, 2, MAX_COUNT)


class MarkedSpan(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A span of the text between two markers: the model's thinking, or a tool call.

    Attributes:
        opening, closing: the markers, as text. Without a closing marker (None) the span lasts to the end.
        opened: the prompt has already opened the span.
        once: after the span, the markers mean nothing.
        until: opening markers of other spans. They end this span.
        resumes: it continues after such a span.
    """

    opening: str
    closing: str | None
    opened: bool = False
    once: bool = False
    until: tuple[str, ...] = ()
    resumes: bool = False


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A limit of the model's thinking. After this many tokens, the tokens that close the thinking are forced. Then the
    model continues by itself. The same tokens end a thought that goes round in circles, or that the client ends.

    Attributes:
        max_tokens: of one thought, without the markers; ≥ 0. None: no limit.
        span: the markers of the model's thinking.
        also: other spellings of the span's two markers.
        closing_token_ids: the forced tokens.
        words_token_ids: closing words, forced before these tokens.
        tool_format: the format of the model's tool calls (a key of text.tool_parsers.TOOL_FORMATS), or "". Within a
            call the span's markers mean nothing.
        calls: the meaning of a call within a thought. With "text" it is a part of the thought. With "end" it ends the
            thought. With "inside" the thought continues after the call, and the call is not counted.
    """

    max_tokens: int | None
    span: MarkedSpan
    closing_token_ids: tuple[int, ...]
    words_token_ids: tuple[int, ...] = ()
    tool_format: str = ""
    calls: Literal["text", "end", "inside"] = "text"
    also: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        conform_fields(self, "thinking_token_budget")
        if self.max_tokens is not None:
            check_whole("thinking_token_budget", "", self.max_tokens, 0, 2**31 - 1)
        if self.span.closing is None or not self.closing_token_ids:
            raise ParameterError(
                "thinking_token_budget needs a marker that closes the thinking", "thinking_token_budget"
            )
        if not all(marker for pair in ((self.span.opening, self.span.closing), *self.also) for marker in pair):
            raise ParameterError("thinking_token_budget: a marker must not be empty", "thinking_token_budget")

    @property
    def forced_token_ids(self) -> tuple[int, ...]:
        """All tokens that are forced at the end of a thought."""
        return self.words_token_ids + self.closing_token_ids


GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "ebnf", "lark", "structural_tag"]
MAX_GRAMMAR = 1 << 20  # characters of a grammar's source
MAX_WHITESPACE = 32


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The language of the output. Each token is drawn from those after which the output can still become a text of this
    language.

    Attributes:
        kind: the form of `source`, one of the kinds below.
        source: the schema, pattern, JSON list of texts, grammar or tag, as text. It is "" for json_object.
        whitespace: the most white space characters in a row between two tokens of JSON, 0 … 32. Without a limit a model
            could write white space forever.
        after: the free span of the text: the model's thinking. The grammar begins after its closing marker, or after
            another spelling of it (other_closings).
        opening_token_ids: each spelling of the span's opening marker as token ids. It may come first if the model opens
            the span by itself.
        entry_token_ids: the marker of a tool call. It also ends the free part, and has the grammar's first tokens.
        close_in_time: shortly before max_tokens, allow only tokens that complete the output, so that it ends valid.

    Kinds:

    - json_object: any JSON object.
    - json_schema: JSON that validates.
    - regex: the whole output matches.
    - choice: one of several texts.
    - ebnf: GBNF, as in llama.cpp.
    - lark: Lark's syntax, as in llguidance.
    - structural_tag: free text with tagged spans that must fit schemas, in xgrammar's format.
    """

    kind: GrammarKind
    source: str = ""
    whitespace: int = 8
    after: MarkedSpan | None = None
    other_closings: tuple[str, ...] = ()
    opening_token_ids: tuple[tuple[int, ...], ...] = ()
    entry_token_ids: tuple[int, ...] = ()
    close_in_time: bool = False

    def __post_init__(self) -> None:
        conform_fields(self, "grammar")
        check_whole("grammar", "whitespace", self.whitespace, 0, MAX_WHITESPACE)
        if len(self.source) > MAX_GRAMMAR:
            raise ParameterError(
                f"a grammar must have at most {MAX_GRAMMAR} characters, got {len(self.source)}", "grammar"
            )
        if self.after is not None and not all((self.after.closing, *self.other_closings)):
            raise ParameterError("a grammar begins after a span only where a marker closes it", "grammar")
        if not all(self.opening_token_ids):
            raise ParameterError("a marker that opens the span before a grammar must have a token", "grammar")


Rule = Literal["exact", "rejection", "block", "typical"]
MAX_DRAFTS = 32


class Speculation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The drafting for one request.

    Attributes:
        max_drafts: the most drafts per step, 0 … 32. None leaves it to the engine. Tokens without an alternative
            (forced tokens, the only tokens that a grammar allows) are always computed ahead.
        rule: the rule of verification (sampling/verify.py). None is exact if a drafter guesses tokens, rejection if it
            draws them from distributions. "typical" changes the distribution, the others don't.
    """

    max_drafts: int | None = None
    rule: Rule | None = None

    def __post_init__(self) -> None:
        conform_fields(self, "speculation")
        if self.max_drafts is not None:
            check_whole("speculation", "max_drafts", self.max_drafts, 0, MAX_DRAFTS)


def check_whole(field: str, part: str, value: object, low: int, high: int) -> None:
    """Raise ParameterError unless `value` is an integer in low … high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        name = f"{field}.{part}" if part else field
        raise ParameterError(f"{name} must be an integer in [{low}, {high}], got {repr_value(value)}", field)
