"""What the generating endpoints share: request fields under OpenAI's and vLLM's names, and the usage record.

Every optional field may also be null, which means "not given". `known` and `refused` say what becomes of other fields.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from tailrace.api.schema.peers import HARMLESS, NOT_OFFERED
from tailrace.api.schema.structured import JsonText, StructuredOutputs
from tailrace.explain.record import ExplainOptions
from tailrace.params import FIELDS
from tailrace.request.fields import Field, TokenId

Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
CacheSalt = Annotated[str, msgspec.Meta(max_length=1024)]
Deadline = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
StreamInterval = Annotated[int, msgspec.Meta(ge=1, le=1024)]
StreamIntervalMs = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
RequestId = Annotated[
    str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]*$(?!\n)")
]  # Python's $ lets \n through


EarlyStopping = Literal["never"] | bool


class StreamOptions(msgspec.Struct):
    """`include_usage`: a last chunk with the usage. `continuous_usage_stats`: usage so far in each chunk."""

    OTHERS: ClassVar = frozenset({"include_obfuscation"})
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


def over_http(field: Field) -> Any:
    """The type of a sampling field in a request, where it has the same meaning there; null is its default."""
    kind = field.type if field.http == "same" else field.http
    return kind | None


# the sampling fields of the same meaning on both sides; those of another are declared below
PLAIN = {name: field for name, field in FIELDS.items() if field.http not in ("", "converted")}
PlainFields = msgspec.defstruct(
    "PlainFields",
    [(name, over_http(field), None) for name, field in PLAIN.items()],
    kw_only=True,
    module=__name__,
)


class PredictedPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a predicted output."""

    type: Literal["text"]
    text: str


class PredictedOutput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The expected output, of which much will come: a file that is to be edited. It changes no token of the answer."""

    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        """The parts as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class GenerateRequest(PlainFields, kw_only=True):
    """The fields of all endpoints. Sampling fields mean what params.SamplingParams says; null takes its default. Those
    that no code here reads by name come from its declarations."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    prompt_logprobs: int | None = None
    preset: str | None = None
    return_sampling_params: bool | None = None
    # sampling fields that have another type or meaning in the engine
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    banned_regex: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    sequence_bias: list[tuple[str | list[TokenId], float]] | None = None
    bad_words: list[str] | None = None
    dry_multiplier: float | None = None
    dry_sequence_breakers: list[str] | None = None
    guidance_scale: float | None = None
    cfg_scale: float | None = None
    # what the output must be: at most one of these
    structured_outputs: StructuredOutputs | None = None
    structural_tag: JsonText | None = None
    guided_json: JsonText | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    grammar: str | None = None
    json_schema: JsonText | None = None
    regex: str | None = None
    ebnf: str | None = None
    # at which length other servers cut prompts; see api/prompt_length.py
    truncation_length: int | None = None
    num_ctx: int | None = None
    # of the answer and its way
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    deadline_s: Deadline | None = None
    stream_interval: StreamInterval | None = None
    stream_interval_ms: StreamIntervalMs | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    explain: bool | ExplainOptions | None = None
    request_id: RequestId | None = None

    @property
    def streamed(self) -> bool:
        """The answer goes out as it comes."""
        return bool(self.stream)

    @property
    def reports_usage(self) -> bool:
        """The chunks end with one that carries the usage; always so where they are folded into one answer."""
        return not self.stream or bool(self.stream_options and self.stream_options.include_usage)

    @property
    def reports_usage_always(self) -> bool:
        """Every chunk of the stream carries the usage so far."""
        return bool(self.stream and self.stream_options and self.stream_options.continuous_usage_stats)


# Fields that ask for nothing that would change the answer: accepted in silence.
TOLERATED = HARMLESS | frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        # of Anthropic's
        "cache_control",
        "diagnostics",
        "inference_geo",
        "speed",
        "user_profile_id",
        "workspace_id",
        "parallel_tool_calls",
    }
)

# Fields that would change the answer, were they served: field → the values at which they ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = NOT_OFFERED | {
    "truncate_prompt_tokens": (None,),
    "prompt_embeds": (None,),
    "guided_whitespace_pattern": (None,),
    "logits_processors": (None, []),
}


class PromptLogprob(msgspec.Struct, frozen=True):
    """Of one token at a place of the prompt; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


# vLLM's shape: per token of the prompt null (the first), or token id → its PromptLogprob, the token's own among them;
# as JSON
PromptLogprobEntries = list[msgspec.Raw | None]

# the ids that a token was drawn from, ascending; null: more than the server tells. Written already
SamplingMaskJson = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": "integer"}})
]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How much of the prompt came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of a request with a prediction: how many of the predicted tokens are in the answers, and how many are not. Of
    other requests: how many draft tokens were accepted and rejected.

    reasoning_tokens: without the markers; absent if the answer has no channel of its own for thoughts.
    """

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET


class Timings(msgspec.Struct, frozen=True):
    """How long an answer took, in llama.cpp's shape. Times are milliseconds, rates are tokens per second.

    - cache_n: prompt tokens from the prefix cache. prompt_n: the other prompt tokens.
    - prompt_ms: from the request's acceptance to the first token. predicted_ms: from the first token to the last one.
    - predicted_n: output tokens. draft_n: draft tokens. draft_n_accepted: accepted draft tokens.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class ProgressReport(msgspec.Struct, frozen=True):
    """How much of the prompt is computed, in llama.cpp's shape: tokens of the prompt, those that came from the prefix
    cache, all computed ones with them, and milliseconds since the request was accepted."""

    total: int
    cache: int
    processed: int
    time_ms: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request: each prompt once, every choice's tokens, the stopping token included.
    completion_tokens_details: where tokens were predicted or drafted, or tokens of thoughts are counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thoughts; 0 where they are not counted."""
        details = self.completion_tokens_details
        counted = msgspec.UNSET if details is msgspec.UNSET else details.reasoning_tokens
        return 0 if counted is msgspec.UNSET else counted
