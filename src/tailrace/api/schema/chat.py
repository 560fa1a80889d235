"""POST /v1/chat/completions: request, chunk, full answer."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.chat_calls import AnswerToolCall, ToolCallDelta
from tailrace.api.schema.common import (
    REFUSED,
    EarlyStopping,
    GenerateRequest,
    PredictedOutput,
    ProgressReport,
    PromptLogprobEntries,
    SamplingMaskJson,
    Timings,
    Usage,
)
from tailrace.api.schema.explain import ExplanationJson
from tailrace.api.schema.structured import ResponseFormat
from tailrace.api.schema.tools import ChatTool, ToolChoice

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
StopScope = Literal["all", "content"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
Budget = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class ThinkingOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model thinks ("adaptive" and "auto": as it likes, which is on), and for how many tokens at most.
    `clear_thinking`: for templates that ask whether to leave out earlier thoughts."""

    type: Literal["enabled", "adaptive", "auto", "disabled"]
    budget_tokens: Budget | None = None
    clear_thinking: bool | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """OpenRouter's and OpenAI's names. `max_tokens`: `thinking_token_budget`. `enabled`: `enable_thinking`. `summary`,
    `generate_summary`: /v1/responses sends the thought as its summary too. `exclude`: leave what the model thinks out
    of the answer of a chat. `context`: which thoughts the prompt has; the template decides. `mode`: there is one."""

    effort: ReasoningEffort | None = None
    max_tokens: Budget | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


# of parts that are no text (api/foreign_content.py), and what vendors note beside a text
OF_PARTS = frozenset(
    {"image_url", "input_image", "image", "audio_url", "input_audio", "audio", "video_url", "input_video", "video"}
    | {"file", "file_id", "file_url", "file_data", "filename", "detail", "uuid", "annotations", "logprobs", "id"}
    | {"cache_control", "prompt_cache_breakpoint"}
)


class Part(msgspec.Struct, omit_defaults=True):
    """One part of a message's content; the types "text" and "refusal" are served."""

    OTHERS: ClassVar = OF_PARTS
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn. What the chat template may look at is passed on as it came. `refusal`: text of an answer, as content.
    What the model thought may come under any of its three names. `tool_plan`: of Command's. `audio`, `function_call`:
    refused."""

    OTHERS: ClassVar = frozenset({"annotations", "reasoning_details", "cache_control", "id", "prefix"})
    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    tool_plan: str | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None


class Conversation(Protocol):
    """What becomes a prompt through the chat template."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None
    reasoning_effort: ReasoningEffort | None
    enable_thinking: bool | None
    thinking: bool | ThinkingOptions | None
    reasoning: ReasoningOptions | None
    thinking_token_budget: int | None
    verbosity: Verbosity | None
    documents: list[dict[str, Any]] | None
    add_special_tokens: bool | None


class ChatRequest(GenerateRequest, kw_only=True):
    """`max_completion_tokens` is the newer name of `max_tokens`; giving both with different values is refused.
    `separate_reasoning`: false leaves what the model thinks in the content, markers and all. `include_reasoning`: false
    leaves it out of the answer. `timings_per_token`: the last chunk says how long the answer took. `resumable`: the
    stream's events have ids, and the rest can be got again. `return_progress`: chunks show the prompt's progress.
    `stop_scope`: "content" looks for stop strings and patterns neither in what it thinks nor in tool calls.
    `thinking_token_budget`: tokens after which a thought is closed. `reasoning_budget_message`: what is written at the
    end of a thought that the server closes. `reasoning_control`: a request may end the thought while it is written.
    `reasoning_effort`: how much the model should think, where its chat template asks.
    `add_special_tokens`: add what the tokenizer puts before a text to the prompt that the chat template wrote, false.
    `enable_thinking`, `thinking`, `reasoning`: whether, and how much, under the names of others. `verbosity`: for
    templates that ask for it.
    `documents`: what the answer rests on, for templates that take them. `negative_prompt`: what guidance leads away
    from: what the user would say, or a conversation. `prediction`: of the content. `best_of`: beams of a search."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    negative_prompt: str | list[ChatMessage] | None = None
    prediction: PredictedOutput | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    thinking: bool | ThinkingOptions | None = None
    reasoning: ReasoningOptions | None = None
    verbosity: Verbosity | None = None
    documents: list[dict[str, Any]] | None = None
    separate_reasoning: bool | None = None
    include_reasoning: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    resumable: bool | None = None
    stop_scope: StopScope | None = None
    thinking_token_budget: int | None = None
    reasoning_budget_message: str | None = None
    reasoning_control: bool | None = None
    use_beam_search: bool | None = None
    best_of: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    add_special_tokens: bool | None = None


CHAT_REFUSED: dict[str, tuple[Any, ...]] = REFUSED | {
    "echo": (None, False),
    "prompt": (None,),
    "input_ids": (None, []),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "chat_template": (None,),
    "web_search_options": (None,),
}


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """The drawn token and the likeliest ones; entropy and varentropy in nats where `report_entropy` asks for them."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]
    entropy: float | UnsetType = UNSET
    varentropy: float | UnsetType = UNSET


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One TokenLogprob per token, in order, as JSON."""

    content: list[msgspec.Raw]


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """New content or reasoning, or a tool call. The first of a choice carries the role, the last is empty.
    `reasoning_content` and `reasoning` are two names of one text."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET

    @property
    def thought(self) -> str:
        """The reasoning, whatever its name."""
        return self.reasoning_content or self.reasoning or ""


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """`finish_reason` is null until the choice's last chunk; `stop_reason` says which string or token id stopped it."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    explanations: list[ExplanationJson] | UnsetType = UNSET
    sampling_mask: list[SamplingMaskJson] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET
    prompt_token_id_logprobs: list[list[float]] | UnsetType = UNSET
    sampling_params: dict[str, Any] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: ProgressReport | UnsetType = UNSET


class AnswerMessage(msgspec.Struct, frozen=True):
    """The content, the reasoning, and the tool calls. `content` is null where there are only calls."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET
    explanations: list[ExplanationJson] | UnsetType = UNSET
    sampling_mask: list[SamplingMaskJson] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The full answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET
    prompt_token_id_logprobs: list[list[float]] | UnsetType = UNSET
    sampling_params: dict[str, Any] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
