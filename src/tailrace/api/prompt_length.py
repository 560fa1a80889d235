"""Refuses prompts that can't fit the context, by their length in characters before they are tokenized, or by their
tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ContextLengthError, ParameterError

if TYPE_CHECKING:
    from tailrace.api.schema.common import GenerateRequest
    from tailrace.api.service import Service


def check_length(service: Service, text: str, field: str) -> None:
    """Raise ContextLengthError for a text that can't fit the context, before it is tokenized."""
    num_tokens, limit = service.tokenizer.estimate_min_tokens(text), service.client.model.max_model_len
    if num_tokens >= limit:
        raise too_long(num_tokens, limit, field, "at least ")


def check_uncut(ask: GenerateRequest, num_prompt: int, prompt_field: str, max_tokens: int, limit_field: str) -> None:
    """Raise ParameterError if another server would cut the beginning of the prompt. A limit of 0 or less is no limit.

    text-generation-webui's truncation_length and koboldcpp's max_context_length hold the prompt and max_tokens.
    Ollama's num_ctx holds the prompt.

    Args:
        max_tokens: the number that the client gives; 0 if the client gives none. limit_field: the client's name for
            max_tokens.
    """
    for name, value, after in (("truncation_length", ask.truncation_length, max_tokens), ("num_ctx", ask.num_ctx, 0)):
        if value is not None and 0 < value < num_prompt + after:
            length = f"{num_prompt} tokens" + (f" and {limit_field} is {after}" if after else "")
            raise ParameterError(
                f"{name}: the prompt has {length}, more than {value}, and no prompt is cut here; shorten "
                f"{prompt_field}, or leave {name} out (or 0)",
                name,
                mentions=[limit_field],
            )


def too_long(num_prompt: int, max_model_len: int, field: str, at_least: str = "") -> ContextLengthError:
    """The error for a prompt that does not fit. Clients recognise it by its words "maximum context length"."""
    return ContextLengthError(
        f"{field}: this model's maximum context length is {max_model_len} tokens, "
        f"but the prompt alone has {at_least}{num_prompt}",
        field,
    )
