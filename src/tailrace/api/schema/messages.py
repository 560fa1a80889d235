"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's shapes: requests, the message, its blocks, the
events."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.chat import Budget, ChatMessage, StopScope
from tailrace.api.schema.common import REFUSED, GenerateRequest
from tailrace.api.schema.message_blocks import InputMessage, MessageBlock
from tailrace.api.schema.tools import OF_TOOLS

# ---- requests


class InputTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs: a custom one, or one that Anthropic has defined, by its type. `input_examples` go to
    the chat template as they are."""

    # the rest: of tools that Anthropic has defined
    OTHERS: ClassVar = (
        OF_TOOLS
        | {"max_uses", "allowed_domains", "blocked_domains", "user_location", "citations", "max_content_tokens"}
        | {"max_characters", "display_width_px", "display_height_px", "display_number", "enable_zoom", "configs"}
        | {"default_config", "mcp_server_name", "response_inclusion", "url_sources", "use_cache", "model", "max_tokens"}
        | {"caching"}
    )
    name: str | None = None
    type: str | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: Any = None


class ToolUse(msgspec.Struct, kw_only=True):
    """Whether the model may call tools: `auto`, `any`, `tool` (the one of this name) or `none`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks, and for how many tokens at most. `display`: "omitted" leaves out what it thinks."""

    OTHERS: ClassVar = frozenset({"block_binding"})
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Budget | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct):
    """The JSON schema of the text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class ContextManagement(msgspec.Struct, kw_only=True):
    """Parts of the conversation that Anthropic's server would leave out. None is left out here, and the answer says
    so."""

    edits: list[dict[str, Any]] = []


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`effort`: as `reasoning_effort` of a chat."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Asked(Protocol):
    """What becomes a prompt, of both endpoints."""

    messages: list[InputMessage]
    system: str | list[MessageBlock] | None
    tools: list[InputTool] | None
    tool_choice: ToolUse | None
    thinking: Thinking | None
    output_config: OutputConfig | None
    chat_template_kwargs: dict[str, Any] | None


class MessagesRequest(GenerateRequest, kw_only=True):
    """Sampling fields as everywhere; `stop_sequences` takes the place of `stop`, and `thinking.budget_tokens` that of
    `thinking_token_budget`: these are refused. `max_tokens` may be more than the context has room for: the answer then
    ends with the context."""

    messages: list[InputMessage]
    max_tokens: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    system: str | list[MessageBlock] | None = None
    stop_sequences: list[str] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolUse | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    negative_prompt: str | list[ChatMessage] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: bool | None = None
    stop_scope: StopScope | None = None
    thinking_token_budget: Any = None
    reasoning_budget_message: str | None = None
    reasoning_control: bool | None = None
    resumable: bool | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are to be counted."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[MessageBlock] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolUse | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None


NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "container": (None,),
    "mcp_servers": (None, []),
    "output_format": (None,),
    "chat_template": (None,),
    "enable_thinking": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "reasoning": (None,),
    "compaction": (None,),
    "fallbacks": (None, []),
    "documents": (None, []),
}
MESSAGES_REFUSED: dict[str, tuple[Any, ...]] = (
    REFUSED
    | NOT_SERVED
    | {
        "best_of": (None, 1),
        "use_beam_search": (None, False),
        "length_penalty": (None, 1.0),
        "echo": (None, False),
        "logprobs": (None, False),
        "add_special_tokens": (None, False),
        "top_logprobs": (None, 0),
        "prompt": (None,),
        "response_format": (None, {"type": "text"}),
        "parallel_tool_calls": (None, True),  # tool_choice.disable_parallel_tool_use here
        "max_completion_tokens": (None,),
        "thread": (None,),  # a conversation that the server would keep
    }
)

# ---- the answer


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thinks. signature: a digest of it."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call. Where what the model wrote is no JSON object, the input is that text under the name INVALID_JSON."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Tokens of thoughts, without their markers."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts. The prompt is input_tokens and cache_read_input_tokens together."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: OutputTokensDetails
    cache_creation_input_tokens: int = 0
    service_tier: str = "standard"


class AppliedEdits(msgspec.Struct, frozen=True):
    """What was left out of the conversation: nothing."""

    applied_edits: tuple[()] = ()


class MessageObject(msgspec.Struct, kw_only=True):
    """The answer. stop_reason: end_turn, max_tokens, stop_sequence, tool_use, model_context_window_exceeded, or
    pause_turn where the server ended it: given back, the model goes on."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    context_management: AppliedEdits | UnsetType = UNSET
    sampling_params: dict[str, Any] | UnsetType = UNSET


class StopDelta(msgspec.Struct, frozen=True):
    """How the message ends."""

    stop_reason: str
    stop_sequence: str | None


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature of a thought that is complete."""

    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON."""

    partial_json: str


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the stream; which fields it has depends on its type."""

    type: str
    message: MessageObject | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: Block | UnsetType = UNSET
    delta: StopDelta | TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET
    context_management: AppliedEdits | UnsetType = UNSET


class InputTokens(msgspec.Struct, frozen=True):
    """How many tokens the prompt has."""

    input_tokens: int
