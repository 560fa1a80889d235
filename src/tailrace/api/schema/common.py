"""What the generating endpoints share: request fields under OpenAI's and vLLM's names, and the usage record.

Every optional field may also be null, which means "not given". `known` and `refused` say what becomes of other fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tailrace.api.schema.structured import JsonText, StructuredOutputs
from tailrace.options import RepetitionDetection, Speculation, Watermark
from tailrace.params import LogprobsMode, Scope

MAX_TOKEN_ID = 2**31 - 1  # any vocabulary is smaller; keeps what crosses the wire within 64 bits
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Deadline = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
StreamInterval = Annotated[int, msgspec.Meta(ge=1, le=1024)]
StreamIntervalMs = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
RequestId = Annotated[
    str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]*$(?!\n)")
]  # Python's $ lets \n through


EarlyStopping = Literal["never"] | bool


class StreamOptions(msgspec.Struct):
    """`include_usage`: a last chunk with the usage. `continuous_usage_stats`: usage so far in each chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The fields of both endpoints. Sampling fields mean what params.SamplingParams says; null takes its default."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # beyond OpenAI's
    preset: str | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    smoothing_factor: float | None = None
    smoothing_curve: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_a: float | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    top_n_sigma: float | None = None
    top_h: float | None = None
    p_less: bool | None = None
    p_less_norm: bool | None = None
    min_k: bool | None = None
    min_k_tau: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    repetition_penalty: float | None = None
    penalty_last_n: int | None = None
    repetition_scope: Scope | None = None
    penalty_scope: Scope | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    normalize_logits: bool | None = None
    encoder_repetition_penalty: float | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    sequence_bias: list[tuple[str | list[TokenId], float]] | None = None
    banned_strings: list[str] | None = None
    banned_ignore_case: bool | None = None
    banned_regex: str | list[str] | None = None
    forced_token_ids: list[TokenId] | None = None
    processors: dict[str, dict[str, Any]] | None = None
    watermark: Watermark | None = None
    sampler_order: list[str] | None = None
    guidance_scale: float | None = None
    cfg_scale: float | None = None
    speculation: Speculation | None = None
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
    logprob_token_ids: list[TokenId] | None = None
    report_entropy: bool | None = None
    return_sampling_params: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    stop_regex: str | list[str] | None = None
    repetition_detection: RepetitionDetection | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    logprobs_mode: LogprobsMode | None = None
    prompt_logprobs: int | None = None
    priority: Priority | None = None
    deadline_s: Deadline | None = None
    stream_interval: StreamInterval | None = None
    stream_interval_ms: StreamIntervalMs | None = None
    return_token_ids: bool | None = None
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
TOLERATED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
    }
)

# Fields that would change the answer, were they served: field → the values at which they ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
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


# vLLM's shape: per token of the prompt null (the first), or token id → its PromptLogprob, the token's own among them; as JSON
PromptLogprobEntries = list[msgspec.Raw | None]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How much of the prompt came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the tokens that were guessed ahead (speculation): how many stood, and how many did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request: each prompt once, every choice's tokens, the stopping token included. completion_tokens_details: where
    tokens were guessed ahead."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET

    @property
    def drafts(self) -> tuple[int, int]:
        """Tokens guessed ahead, and those of them that stood."""
        details = self.completion_tokens_details
        if details is msgspec.UNSET:
            return 0, 0
        return (
            details.accepted_prediction_tokens + details.rejected_prediction_tokens,
            details.accepted_prediction_tokens,
        )
