"""The negative prompt of classifier-free guidance: text, ids or messages → token ids; and the length that both prompts
need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.api.chat_prompt import encode_chat
from tailrace.api.prompt_length import check_length
from tailrace.api.schema.chat import ChatMessage
from tailrace.errors import ParameterError, RequestError
from tailrace.params import NEUTRAL, check_range

if TYPE_CHECKING:
    from tailrace.api.received import Received
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.schema.common import GenerateRequest
    from tailrace.api.schema.completions import CompletionRequest
    from tailrace.api.service import Service

FIELD = "negative_prompt"


def guidance_scale(ask: GenerateRequest) -> float | None:
    """The scale, under either of its names.

    Raises:
        ParameterError: two that differ.
    """
    if None not in (ask.guidance_scale, ask.cfg_scale) and ask.guidance_scale != ask.cfg_scale:
        raise ParameterError(
            f"cfg_scale ({ask.cfg_scale}) and guidance_scale ({ask.guidance_scale}) are two names of one scale",
            "cfg_scale",
        )
    if ask.cfg_scale is not None:
        check_range("guidance_scale", ask.cfg_scale, "cfg_scale")
    return ask.cfg_scale if ask.guidance_scale is None else ask.guidance_scale


def find_negative(ask: ChatRequest | CompletionRequest) -> str | list[Any] | None:
    """Return the negative prompt, or None where it asks for nothing: guidance is turned off, or there is neither a
    scale nor any text.

    Raises:
        ParameterError: see guidance_scale.
    """
    scale = guidance_scale(ask)
    off = scale == NEUTRAL["guidance_scale"] or (scale is None and not ask.negative_prompt)
    return None if off else ask.negative_prompt


async def negative_of_text(received: Received[Any], ask: CompletionRequest, special: bool) -> tuple[int, ...]:
    """Token ids of a completion's negative prompt; () for none. special: add the tokenizer's special tokens, as for the
    prompt."""
    given = find_negative(ask)
    if given is None:
        return ()
    service = received.service
    if isinstance(given, str):
        text = given
        check_length(service, text, FIELD)
        given = await received.run(lambda: service.tokenizer.encode(text, add_special_tokens=special), received.size)
    return or_first_token(service, given)


async def negative_of_chat(received: Received[Any], ask: ChatRequest, with_tools: bool) -> tuple[int, ...]:
    """Token ids of a chat's negative prompt; () for none. A string is a message of the user; the rest is as in the chat
    itself."""
    given, service = find_negative(ask), received.service
    if given is None:
        return ()
    if isinstance(given, str):
        last = ask.messages[-1:] if ask.continue_final_message else []
        messages = [ChatMessage(role="user", content=given), *last]
    elif not given:
        return or_first_token(service, [])
    else:
        messages = given
    continued = bool(ask.continue_final_message) and messages[-1].role == "assistant"
    other = msgspec.structs.replace(ask, messages=messages, continue_final_message=continued)
    try:
        return or_first_token(service, await encode_chat(received, other, with_tools))
    except RequestError as error:
        param = (error.param or FIELD).replace("messages", FIELD, 1)
        raise type(error)(str(error).replace("messages", FIELD, 1), param) from error


def or_first_token(service: Service, ids: list[int]) -> tuple[int, ...]:
    """Return the ids. An empty prompt becomes the token that begins a text: a prompt that asks for nothing.

    Raises:
        ParameterError: the model has no such token.
    """
    if not ids and service.tokenizer.bos_id is None:
        raise ParameterError(
            f"{FIELD} must have at least one token, got none, and this model has no token that begins a text; "
            "leave it out for the prompt's last token",
            FIELD,
        )
    return tuple(ids) or (service.tokenizer.bos_id,)  # type: ignore[return-value]


def find_longer_prompt(num_prompt: int, negative: tuple[int, ...], prompt_field: str) -> tuple[int, str]:
    """The length of the longer prompt in tokens, and the field it came in."""
    return (len(negative), FIELD) if len(negative) > num_prompt else (num_prompt, prompt_field)
