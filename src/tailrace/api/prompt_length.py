"""Refuses prompts that can't fit the context, by their length in characters before they are tokenized, or by their
tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ContextLengthError

if TYPE_CHECKING:
    from tailrace.api.service import Service


def check_length(service: Service, text: str, field: str) -> None:
    """Raise ContextLengthError for a text that can't fit the context, before it is tokenized."""
    num_tokens, limit = service.tokenizer.fewest(text), service.client.model.max_model_len
    if num_tokens >= limit:
        raise too_long(num_tokens, limit, field, "at least ")


def too_long(num_prompt: int, max_model_len: int, field: str, at_least: str = "") -> ContextLengthError:
    """The error for a prompt that does not fit. Clients recognise it by its words "maximum context length"."""
    return ContextLengthError(
        f"{field}: this model's maximum context length is {max_model_len} tokens, "
        f"but the prompt alone has {at_least}{num_prompt}",
        field,
    )
