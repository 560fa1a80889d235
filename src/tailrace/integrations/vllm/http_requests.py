"""tailrace's fields in vLLM's HTTP requests, where nobody reads them.

Outside of `vllm_xargs` vLLM ignores names that it does not know, and its beam search reads no `vllm_xargs`. A request
with such a field gets an HTTP 400 that names the field. The names that vLLM ignores otherwise still pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tailrace.errors import ParameterError
from tailrace.integrations.field_values import read_value
from tailrace.integrations.refusals import NEARER, SHOWN, find_near
from tailrace.integrations.vllm import layout
from tailrace.integrations.vllm.fallbacks import log, raise_found
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.refused_fields import EVERYWHERE
from tailrace.integrations.vllm.xargs import OURS as OWN
from tailrace.params import FIELDS, find_idle

OPENAI = "vllm.entrypoints.openai"
CHAT = f"{OPENAI}.chat_completion.protocol.ChatCompletionRequest"
COMPLETION = f"{OPENAI}.completion.protocol.CompletionRequest"
RESPONSES = f"{OPENAI}.responses.protocol.ResponsesRequest"
# OpenAI's own; it changes the speed of an answer alone
IGNORED = "prediction"


def install_checks() -> None:
    """Check the requests of OpenAI's endpoints, unless this vLLM has others."""
    try:
        layout.replace_functions(OURS, {name: {"model_extra"} for name in (CHAT, COMPLETION, RESPONSES)})
    except AttributeError as error:
        log.error("tailrace checks no names outside of vllm_xargs, fields may be lost: %s", error)


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


def find_outer_error(given: Mapping[str, Any]) -> ParameterError | None:
    """Return an error for the first name that means one of tailrace's fields; None if there is none.

    Args:
        given: what vLLM ignores of a request.
    """
    meant = {name: field for name in given if (field := find_meant(name))}
    values = {field: given[name] for name, field in meant.items()}
    for name in list_acting(values):
        shown = next(other for other, field in meant.items() if field == name)[:SHOWN]
        reason = EVERYWHERE.get(name) or f"set {name} in vllm_xargs"
        return ParameterError(f"{shown} has no effect outside of vllm_xargs: {reason}", shown)
    return None


def find_meant(name: str) -> str:
    """Return the field of tailrace's that is meant by a name, and that vLLM itself lacks; "" if none is."""
    field = name if name in FIELDS else find_near(name, NEARER)
    return field if field in OWN or (field in EVERYWHERE and field != IGNORED) else ""


def find_beam_error(given: Mapping[str, Any]) -> ParameterError | None:
    """Return an error for the first of tailrace's fields among the `vllm_xargs` of a beam search."""
    for name in list_acting({name: value for name, value in given.items() if name in OWN}):
        return ParameterError(f"{name} can't be had with use_beam_search, which draws no tokens", name)
    return None


def list_acting(given: Mapping[str, Any]) -> list[str]:
    """Return the fields that ask for something: neither neutral, nor of a method that is off. A wrong value asks."""
    values: dict[str, Any] = {}
    wrong = []
    for name, value in given.items():
        try:
            if value is not None:
                values[name] = FIELDS[name].check_value(read_value(FIELDS[name], value))
        except ParameterError:
            wrong.append(name)
    idle = find_idle(values, values)
    return wrong + [name for name, value in values.items() if name not in idle and not FIELDS[name].neutral(value)]


OURS: dict[str, Function] = {
    **{f"{name}.to_sampling_params": make_params for name in (CHAT, COMPLETION, RESPONSES)},
    **{f"{name}.to_beam_search_params": make_beams for name in (CHAT, COMPLETION)},
}
