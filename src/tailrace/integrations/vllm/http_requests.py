"""tailrace's fields in vLLM's HTTP requests, where nobody reads them.

Outside of `vllm_xargs` vLLM ignores names that it does not know, and its beam search reads no `vllm_xargs`. A request
with such a field gets an HTTP 400 that names the field. The names that vLLM ignores otherwise still pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import msgspec

from tailrace.errors import ParameterError
from tailrace.integrations.refusals import SHOWN, find_meant, list_asking
from tailrace.integrations.vllm import layout
from tailrace.integrations.vllm.fallbacks import log, raise_found
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.refused_fields import EVERYWHERE
from tailrace.integrations.vllm.xargs import OURS as OWN

OPENAI = "vllm.entrypoints.openai"
CHAT = f"{OPENAI}.chat_completion.protocol.ChatCompletionRequest"
COMPLETION = f"{OPENAI}.completion.protocol.CompletionRequest"
RESPONSES = f"{OPENAI}.responses.protocol.ResponsesRequest"
MESSAGES = "vllm.entrypoints.anthropic.serving.AnthropicServingMessages.create_messages"


def install_checks() -> None:
    """Check the requests of OpenAI's and of Anthropic's endpoints, unless this vLLM has others."""
    read = {name: {"model_extra"} for name in (CHAT, COMPLETION, RESPONSES)}
    for endpoints, ours, needed in (("OpenAI's", OURS, read), ("Anthropic's", {MESSAGES: answer_messages}, {})):
        try:
            layout.replace_functions(ours, needed)
        except AttributeError as error:
            message = "tailrace checks no names outside of vllm_xargs at %s endpoints, fields may be lost: %s"
            log.error(message, endpoints, error)


def make_params(theirs: Function, request: Any, *args: Any, **more: Any) -> Any:
    """Return the parameters of vLLM's request.

    Raises:
        VLLMValidationError: over HTTP a 400.
    """
    raise_found(partial(find_outer_error, request.model_extra or {}))
    return theirs(request, *args, **more)


def make_beams(theirs: Function, request: Any, *args: Any, **more: Any) -> Any:
    """Return the parameters of vLLM's beam search.

    Raises:
        VLLMValidationError: over HTTP a 400.
    """
    raise_found(partial(find_outer_error, request.model_extra or {}))
    raise_found(partial(find_beam_error, request.vllm_xargs or {}))
    return theirs(request, *args, **more)


async def answer_messages(theirs: Function, serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Return what vLLM answers to Anthropic's request. Its class keeps no names that it does not know.

    Raises:
        VLLMValidationError: over HTTP a 400.
    """
    if raw_request is not None:
        body = await raw_request.body()
        raise_found(lambda: find_outer_error(find_dropped(body, type(request).model_fields)))
    return await theirs(serving, request, raw_request)


def find_dropped(body: bytes, known: Collection[str]) -> dict[str, Any]:
    """Return what vLLM ignores of a body. known: the names that vLLM reads."""
    return {name: value for name, value in msgspec.json.decode(body).items() if name not in known}


def find_outer_error(given: Mapping[str, Any]) -> ParameterError | None:
    """Return an error for the first name that asks for a field of tailrace's; None if there is none.

    Args:
        given: what vLLM ignores of a request.
    """
    for name in list_asking({name: value for name, value in given.items() if is_lost(find_meant(name))}):
        field, shown = find_meant(name), name[:SHOWN]
        reason = EVERYWHERE.get(field) or f"set {field} in vllm_xargs"
        return ParameterError(f"{shown} has no effect outside of vllm_xargs: {reason}", shown)
    return None


def is_lost(field: str) -> bool:
    """Return whether vLLM itself lacks this field of tailrace's."""
    return field in OWN or field in EVERYWHERE


def find_beam_error(given: Mapping[str, Any]) -> ParameterError | None:
    """Return an error for the first of tailrace's fields among the `vllm_xargs` of a beam search."""
    for name in list_asking({name: value for name, value in given.items() if name in OWN}):
        return ParameterError(f"{name} can't be had with use_beam_search, which draws no tokens", name)
    return None


OURS: dict[str, Function] = {
    **{f"{name}.to_sampling_params": make_params for name in (CHAT, COMPLETION, RESPONSES)},
    **{f"{name}.to_beam_search_params": make_beams for name in (CHAT, COMPLETION)},
}
