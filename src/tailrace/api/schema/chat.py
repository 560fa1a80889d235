"""Chat Completions, as documented by OpenAI; what we add is marked."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.common import GenerationRequest, Usage
from tailrace.errors import ParameterError

MAX_TOP_LOGPROBS = 20


class Message(msgspec.Struct, omit_defaults=True):
    """One message; other keys are kept for the template."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    # beyond OpenAI
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    # tolerated: they change nothing here
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None

    def num_logprobs(self) -> int | None:
        """How many rivals per token, None for no logprobs."""
        if self.top_logprobs is not None:
            if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
                raise ParameterError(f"top_logprobs must be in [0, 20], got {self.top_logprobs}", "top_logprobs")
            if not self.logprobs:
                raise ParameterError("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages, checked, text parts joined.

        Raises:
            ParameterError: naming the message and the key.
        """
        if not self.messages:
            raise ParameterError("messages must not be empty", "messages")
        return [{**message, "content": read_content(message, i)} for i, message in enumerate(self.messages)]

    def refuse_unsupported(self) -> None:
        """Raise ParameterError for what would change the answer and can't be done (yet)."""
        if (self.response_format or {}).get("type", "text") != "text":
            raise ParameterError("response_format: only {\"type\": \"text\"} is supported", "response_format")
        if self.tool_choice not in (None, "none", "auto"):
            raise ParameterError("tool_choice: only \"none\" and \"auto\" are supported", "tool_choice")


def read_content(message: dict[str, Any], index: int) -> str | None:
    """A message's text."""
    place = f"messages[{index}]"
    if not isinstance(message.get("role"), str):
        raise ParameterError(f"{place}.role must be a string", f"{place}.role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ParameterError(f"{place}.content must be a string or a list of text parts", f"{place}.content")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ParameterError(f"{place}.content: only parts of type text are supported", f"{place}.content")
    return "".join(part["text"] for part in content)


class TopLogprob(msgspec.Struct):
    """A token, its log-probability, and its own bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """The same of a drawn token, with its rivals."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct):
    """One entry per token."""

    content: list[TokenLogprob]
    refusal: None = None


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What is new in a choice."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    """stop_reason and token_ids are additions."""

    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One frame of a streamed answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | None | UnsetType = UNSET


class AnswerMessage(msgspec.Struct):
    """The assistant's whole message."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """A whole choice."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """The whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None
