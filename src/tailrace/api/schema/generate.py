"""POST /generate: SGLang's native request and answer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.common import Deadline, Priority, RequestId, TokenId

# logprob, token id, and its text where that is asked for; no logprob for the first token of a prompt
TokenLogprob = tuple[float | None, int, str | None]


def _written(kind: Any) -> msgspec.Meta:
    return msgspec.Meta(extra_json_schema=msgspec.json.schema(kind))


# lists that are written already: every event of a stream has them again
TokenLogprobsJson = Annotated[msgspec.Raw, _written(list[TokenLogprob])]
LikeliestJson = Annotated[msgspec.Raw, _written(list[list[TokenLogprob] | None])]
SamplingMasksJson = Annotated[msgspec.Raw, _written(list[list[int] | None])]
LogprobsJson = Annotated[msgspec.Raw, _written(list[float])]

# SGLang's names of sampling parameters → those of completions
RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
}
# the other sampling parameters, which are fields of completions. Whoever adds a field there decides whether it is one
SAMPLING = frozenset(
    {
        *("n", "preset", "temperature", "dynatemp_range", "dynatemp_exponent", "smoothing_factor", "smoothing_curve"),
        *("top_k", "top_p", "min_p", "top_a", "typical_p", "tfs_z", "epsilon_cutoff", "eta_cutoff", "top_n_sigma"),
        *("top_h", "p_less", "p_less_norm", "min_k", "min_k_tau", "xtc_probability", "xtc_threshold"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "sampler_order"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "penalty_last_n", "repetition_scope"),
        *("penalty_scope", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        *("dry_sequence_breakers", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("encoder_repetition_penalty", "exponential_decay_length_penalty", "normalize_logits"),
        *("logit_bias", "sequence_bias", "allowed_token_ids", "bad_words", "banned_strings", "banned_ignore_case"),
        *("banned_regex", "forced_token_ids", "processors", "watermark", "guidance_scale", "cfg_scale"),
        *("stop", "stop_regex", "stop_token_ids", "ignore_eos", "repetition_detection", "speculation"),
        *("structured_outputs", "structural_tag", "guided_json", "guided_json_object", "guided_regex"),
        *("guided_choice", "guided_grammar", "guided_decoding_backend", "grammar", "json_schema", "regex", "ebnf"),
        *("response_format", "logprobs_mode", "prompt_logprobs_temperature", "add_special_tokens"),
        *("skip_special_tokens", "stream_interval", "stream_interval_ms"),
    }
)


class NativeRequest(msgspec.Struct, kw_only=True):
    """`text` or `input_ids`: one prompt, or several. `sampling_params`: by SGLang's names, or any field of
    /v1/completions that says how to sample. `logprob_start_len`: from this place of the prompt on its tokens have
    logprobs as well; −1: none has. `priority`: smaller runs first."""

    model: str | None = None
    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    sampling_params: dict[str, Any] | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    return_sampling_mask: bool | None = None
    stream: bool | None = None
    rid: RequestId | None = None
    priority: Priority | None = None
    deadline_s: Deadline | None = None


NATIVE_REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("input_embeds", "custom_logit_processor", "lora_path", "session_params"), (None,)),
    **dict.fromkeys(("image_data", "video_data", "audio_data", "token_ids_logprob"), (None, [])),
    **dict.fromkeys(("return_hidden_states", "return_routed_experts"), (None, False)),
    **dict.fromkeys(("return_flat_raw_top_logprobs", "return_flat_raw_output_top_logprobs"), (None, False)),
    "sampling_logprobs_mode": (None, "selected"),
}


class NativeEnd(msgspec.Struct, frozen=True):
    """`type`: stop, length or abort. `matched`: the stop string, or the id of the last token; `length`: tokens;
    `message`: why it was aborted."""

    type: str
    matched: str | int | UnsetType = UNSET
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class NativeMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prompt and of the output so far. Where a list has top tokens, the first of a prompt has none."""

    id: str
    finish_reason: NativeEnd | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    input_token_logprobs: TokenLogprobsJson | UnsetType = UNSET
    output_token_logprobs: TokenLogprobsJson | UnsetType = UNSET
    input_top_logprobs: LikeliestJson | UnsetType = UNSET
    output_top_logprobs: LikeliestJson | UnsetType = UNSET
    output_token_sampling_mask: SamplingMasksJson | UnsetType = UNSET
    output_token_sampling_logprobs: LogprobsJson | UnsetType = UNSET


class Generated(msgspec.Struct, frozen=True):
    """One output, whole or so far. `index`: which of several, in a stream."""

    text: str
    output_ids: list[int]
    meta_info: NativeMeta
    index: int | UnsetType = UNSET


NativeAnswer = Generated | list[Generated]
