"""POST /v1/responses: request, response object, stream events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.chat import (
    ChatMessage,
    ReasoningEffort,
    ReasoningOptions,
    StopScope,
    ThinkingOptions,
    Verbosity,
)
from tailrace.api.schema.common import REFUSED, GenerateRequest
from tailrace.api.schema.errors import Problem
from tailrace.api.schema.explain import ExplanationJson
from tailrace.api.schema.response_items import InputItem, OutputItem, OutputPart
from tailrace.api.schema.structured import ResponsesFormat, TextFormat
from tailrace.api.schema.tools import FlatTool, ToolChoice


class TextOptions(msgspec.Struct):
    """How text is written. `verbosity`: for chat templates that ask for it."""

    format: ResponsesFormat = msgspec.field(default_factory=TextFormat)
    verbosity: Verbosity | UnsetType | None = UNSET


class ConversationName(msgspec.Struct, frozen=True):
    """Names a conversation."""

    id: str


LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
# what OpenAI knows; all but the first two are of items that no model here writes, or are in the items anyway
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponsesRequest(GenerateRequest, kw_only=True):
    """Sampling fields as everywhere; `max_output_tokens` takes the place of `max_tokens`. `store`: keep it for
    retrieval, true. `top_logprobs`: with `include` of "message.output_text.logprobs". `max_tool_calls`: of all tools
    together; a further call ends the response."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    negative_prompt: str | list[ChatMessage] | None = None
    text: TextOptions | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning: ReasoningOptions | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
    enable_thinking: bool | None = None
    thinking: bool | ThinkingOptions | None = None
    separate_reasoning: bool | None = None
    stop_scope: StopScope | None = None
    thinking_token_budget: int | None = None
    reasoning_budget_message: str | None = None
    reasoning_control: bool | None = None
    include: list[Includable] | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    background: bool | None = None
    conversation: str | ConversationName | None = None


RESPONSES_REFUSED: dict[str, tuple[Any, ...]] = REFUSED | {
    "best_of": (None, 1),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1.0),
    "echo": (None, False),
    "messages": (None,),
    "chat_template": (None,),
    "prompt": (None,),
    "context_management": (None, []),
    "logprobs": (None, False),
    "add_special_tokens": (None, False),
    "response_format": (None, {"type": "text"}),
}


class InputDetails(msgspec.Struct, frozen=True):
    """How much of the input came from the prefix cache; tokens written to the cache are not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """The tokens of thoughts, without their markers; 0 where the answer has no channel of its own for them."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(msgspec.Struct, frozen=True):
    """Why: max_output_tokens, deadline, cancelled."""

    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """The response: queued, in_progress, completed, incomplete, cancelled or failed. Open Responses requires the fields
    that are always null."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    background: bool = False
    error: Problem | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    previous_response_id: str | None
    conversation: ConversationName | None = None
    store: bool
    temperature: float
    top_p: float
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    truncation: str = "disabled"
    text: TextOptions
    metadata: dict[str, str]
    reasoning: dict[str, Any] | None = None
    service_tier: str = "default"
    safety_identifier: None = None
    prompt_cache_key: None = None
    usage: ResponseUsage | None = None
    sampling_params: dict[str, Any] | UnsetType = UNSET


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the stream; which fields it has depends on its type."""

    type: str
    sequence_number: int = msgspec.field(default=-1)
    response: ResponseObject | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputPart | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[msgspec.Raw] | UnsetType = UNSET  # of output_text events
    explanations: list[ExplanationJson] | UnsetType = UNSET  # of output_text and reasoning_text events
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    command_index: int | UnsetType = UNSET
    diff: str | UnsetType = UNSET


class ItemList(msgspec.Struct, frozen=True):
    """A page of the items that a response answers. first_id, last_id: null where it is empty."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class ResponseTokens(msgspec.Struct, frozen=True):
    """How many tokens the prompt has."""

    input_tokens: int
    object: str = "response.input_tokens"


class Deleted(msgspec.Struct, frozen=True):
    """It is stored no longer."""

    id: str
    object: str = "response"
    deleted: bool = True
