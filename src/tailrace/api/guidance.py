"""A request's other prompt, for classifier-free guidance: text, ids or messages → token ids, with the length that both prompts need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request

from tailrace.api.conversation import encode
from tailrace.api.lengths import check_length
from tailrace.api.schema.chat import ChatMessage
from tailrace.api.service import service_of
from tailrace.errors import ParameterError, RequestError
from tailrace.ranges import check_range

if TYPE_CHECKING:
    from tailrace.api.schema.chat import ChatRequest
    from tailrace.api.schema.common import GenerateRequest
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


async def of_text(request: Request, given: str | list[int] | None, special: bool) -> tuple[int, ...]:
    """Token ids of a completion's; () for none. special: the tokenizer's own tokens around it, as around the prompt."""
    if given is None:
        return ()
    service = service_of(request)
    if isinstance(given, str):
        text = given
        check_length(service, text, FIELD)
        given = await service.turns.run(
            request, lambda: service.tokenizer.encode(text, add_special_tokens=special), request.state.size
        )
    return begun(service, given)


async def of_chat(request: Request, ask: ChatRequest, with_tools: bool) -> tuple[int, ...]:
    """Token ids of a chat's: a string is what the user says; everything else is as in the chat itself."""
    given, service = ask.negative_prompt, service_of(request)
    if given is None:
        return ()
    if isinstance(given, str):
        last = ask.messages[-1:] if ask.continue_final_message else []
        messages = [ChatMessage(role="user", content=given), *last]
    elif not given:
        return begun(service, [])
    else:
        messages = given
    continued = bool(ask.continue_final_message) and messages[-1].role == "assistant"
    other = msgspec.structs.replace(ask, messages=messages, continue_final_message=continued)
    try:
        return begun(service, await encode(request, other, with_tools))
    except RequestError as error:
        param = (error.param or FIELD).replace("messages", FIELD, 1)
        raise type(error)(str(error).replace("messages", FIELD, 1), param) from error


def begun(service: Service, ids: list[int]) -> tuple[int, ...]:
    """The ids; where it is empty, the token with which any text begins: then nothing is asked for.

    Raises:
        ParameterError: the model has no such token.
    """
    if not ids and service.tokenizer.bos_id is None:
        raise ParameterError(
            f"{FIELD} must have at least one token, got none, and this model has no token that begins a text; leave it out for "
            "the prompt's last token",
            FIELD,
        )
    return tuple(ids) or (service.tokenizer.bos_id,)  # type: ignore[return-value]


def longest(num_prompt: int, negative: tuple[int, ...], prompt_field: str) -> tuple[int, str]:
    """How many tokens of the context are taken before the output begins, and by which field."""
    return (len(negative), FIELD) if len(negative) > num_prompt else (num_prompt, prompt_field)
