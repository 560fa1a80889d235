"""POST /v1/completions: request, chunk, full answer (which has the shape of a chunk)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.common import (
    REFUSED,
    EarlyStopping,
    GenerateRequest,
    PredictedOutput,
    ProgressReport,
    PromptLogprobEntries,
    SamplingMaskJson,
    Timings,
    TokenId,
    Usage,
)
from tailrace.api.schema.explain import ExplanationJson
from tailrace.api.schema.structured import ResponseFormat


class CompletionRequest(GenerateRequest, kw_only=True):
    """`prompt`: a string, token ids, or a list of either; choices are numbered prompt by prompt."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    resumable: bool | None = None
    negative_prompt: str | list[TokenId] | None = None
    prediction: PredictedOutput | None = None


COMPLETION_REFUSED: dict[str, tuple[Any, ...]] = REFUSED | {
    "suffix": (None, ""),
    "max_completion_tokens": (None,),  # here it is max_tokens
    "messages": (None,),
    "tools": (None, []),
    "stop_scope": (None, "all"),
    "thinking_token_budget": (None,),
}


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry per token; null for an echoed prompt's first. `text_offset`: where in the text the
    token begins, in characters. The entropies, in nats, where `report_entropy` asks for them."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    entropy: list[float | None] | UnsetType = UNSET
    varentropy: list[float | None] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """New text of a choice, or all of it; `finish_reason` is null until the choice's last chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET
    explanations: list[ExplanationJson] | UnsetType = UNSET
    sampling_mask: list[SamplingMaskJson] | UnsetType = UNSET
    prompt_token_id_logprobs: list[list[float]] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the stream, or the full answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    sampling_params: dict[str, Any] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: ProgressReport | UnsetType = UNSET
