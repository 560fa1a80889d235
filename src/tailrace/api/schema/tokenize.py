"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.chat import ChatMessage, ReasoningEffort, ReasoningOptions, ThinkingOptions, Verbosity
from tailrace.api.schema.common import TokenId
from tailrace.api.schema.tools import ChatTool


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`prompt`, or `messages` with what the chat template takes. `add_special_tokens`: of a prompt, true; of messages,
    whose template writes its own, false."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] = []
    tools: list[ChatTool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    thinking: bool | ThinkingOptions | None = None
    reasoning: ReasoningOptions | None = None
    thinking_token_budget: int | None = None
    verbosity: Verbosity | None = None
    documents: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = None
    return_token_offsets: bool | None = None


class Tokenized(msgspec.Struct, frozen=True):
    """`token_strs`: as they stand in the vocabulary. `token_offsets`: where each token begins and ends in the prompt's
    text, in characters. Both if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    token_offsets: list[tuple[int, int]] | UnsetType | None = UNSET


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Special tokens are written out."""

    tokens: list[TokenId]
    model: str | None = None


class Detokenized(msgspec.Struct, frozen=True):
    """The text."""

    prompt: str


TOKENIZE_REFUSED: dict[str, tuple[Any, ...]] = {"chat_template": (None,)}
