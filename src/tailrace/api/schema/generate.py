"""POST /generate: SGLang's native request and answer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.common import CacheSalt, Deadline, Priority, RequestId, TokenId
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.peers import NOT_OFFERED
from tailrace.params import FIELDS

# logprob, token id, and its text where that is asked for; no logprob for the first token of a prompt
TokenLogprob = tuple[float | None, int, str | None]


def _make_schema_meta(kind: Any) -> msgspec.Meta:
    return msgspec.Meta(extra_json_schema=msgspec.json.schema(kind))


# lists that are written already: every event of a stream has them again
TokenLogprobsJson = Annotated[msgspec.Raw, _make_schema_meta(list[TokenLogprob])]
LikeliestJson = Annotated[msgspec.Raw, _make_schema_meta(list[list[TokenLogprob] | None])]
SamplingMasksJson = Annotated[msgspec.Raw, _make_schema_meta(list[list[int] | None])]
LogprobsJson = Annotated[msgspec.Raw, _make_schema_meta(list[float])]

# SGLang's names of sampling parameters → those of completions
RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
}
# sampling parameters among the fields of completions that params.py does not declare
UNDECLARED = (
    *("preset", "cfg_scale", "add_special_tokens", "stream_interval", "stream_interval_ms"),
    *("truncation_length", "num_ctx", "response_format", "structural_tag", "grammar", "json_schema", "regex", "ebnf"),
    *("guided_json", "guided_json_object", "guided_regex", "guided_choice", "guided_grammar"),
    "guided_decoding_backend",
)
REPORTS = (
    "logprobs_mode",
    "prompt_logprobs_temperature",
)  # other reports stand beside sampling_params, or are refused
PROMPTS = ("negative_prompt",)  # a prompt is no sampling parameter, although it changes logits
DECLARED = {
    field.http_name or name
    for name, field in FIELDS.items()
    if field.http and (field.kind != "report" or name in REPORTS) and name not in PROMPTS
}
# the sampling parameters that SGLang and completions call the same
SAMPLING = frozenset(CompletionRequest.__struct_fields__) & DECLARED.union(UNDECLARED) - {*RENAMED.values()}


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
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    deadline_s: Deadline | None = None


NATIVE_REFUSED: dict[str, tuple[Any, ...]] = NOT_OFFERED | {
    "watermark": (None,),
    "background": (None, False),
    "modalities": (None, [], ["text"]),
}


class NativeEnd(msgspec.Struct, frozen=True):
    """`type`: stop, length or abort. `matched`: the stop string, or the id of the last token; `length`: tokens;
    `message`: why it was aborted."""

    type: str
    matched: str | int | UnsetType = UNSET
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class NativeMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the prompt and the output so far. The first entry of input_top_logprobs is null."""

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
