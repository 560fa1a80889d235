"""The sampling parameters of vLLM's token endpoints: from a request, and back to one."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.api import error_handlers
from tailrace.api.json_place import out_of_range
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.generate import RENAMED, SAMPLING
from tailrace.api.schema.peers import HARMLESS, NOT_OFFERED
from tailrace.errors import ParameterError, RequestError, nest_error
from tailrace.params import SamplingParams

PARAMS, EXTRA = "sampling_params", "extra_args"
# the sampling fields of completions
FIELDS = (SAMPLING | {*RENAMED.values()} | {"logprobs", "logprob_token_ids"}) - {"add_special_tokens"}
# those of them that vLLM's SamplingParams has too
SHARED = frozenset(
    (
        *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p"),
        *("seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "logprob_token_ids"),
        *("skip_special_tokens", "include_stop_str_in_output", "logit_bias", "allowed_token_ids", "bad_words"),
        *("repetition_detection", "structured_outputs", "stream_interval"),
    )
)
# fields of vLLM's SamplingParams that change no token → values at which they ask for nothing
THEIRS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("flat_logprobs", "watermarking"), (False,)),
    "thinking_token_budget": (),
    "routed_experts_prompt_start": (0,),
    "prompt_logprobs": (),
    "prompt_logprob_start": (),
    "prompt_logprob_token_ids": (),
    "trace_decode_token_ids": (),
}
IGNORED = frozenset(("output_kind", "skip_clone", "output_text_buffer_length", "skip_reading_prefix_cache"))
OF_TEXT = {"shown_token_ids": ()}  # engine parameters that change the text alone, not the tokens


def write_params(ask: Any, params: SamplingParams, response_format: Any) -> dict[str, Any]:
    """Return the sampling parameters of a request by vLLM's names.

    Args:
        params: of the request. response_format: of the request, if it has one.
    """
    given = {name: value for name in FIELDS if (value := getattr(ask, name, None)) is not None}
    given |= {"max_tokens": params.max_tokens, "logprobs": params.logprobs}
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):  # defaults of the model
        given[name] = getattr(params, name)
    given["response_format"] = response_format
    plain = {name: value for name, value in msgspec.to_builtins(given, str_keys=True).items() if value is not None}
    extra = {name: plain.pop(name) for name in [*plain] if name not in SHARED}
    return plain | ({EXTRA: extra} if extra else {})


def read_params(given: dict[str, Any]) -> CompletionRequest:
    """Return a request for completions with the same parameters, without its prompt.

    Raises:
        ParameterError: naming the parameter.
    """
    extra = given.get(EXTRA) or {}
    if not isinstance(extra, dict):
        raise ParameterError(f"{PARAMS}.{EXTRA} must be an object", f"{PARAMS}.{EXTRA}")
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name == EXTRA or value is None or name.startswith("_") or name in IGNORED:
            continue
        if name in SHARED:
            fields[name] = value
        elif value not in THEIRS.get(name, NOT_OFFERED.get(name, ())):
            place = f"{PARAMS}.{name}"
            hint = f"; a field of /v1/completions has its place in {EXTRA}" if name in FIELDS else ""
            raise ParameterError(f"{place}: not supported{hint}", place)
    for name, value in extra.items():
        if name not in FIELDS - SHARED and name not in HARMLESS:
            place = f"{PARAMS}.{EXTRA}.{name}"
            raise ParameterError(f"{place}: not supported; leave it out", place)
        fields[name] = value
    try:
        return msgspec.convert({**fields, "prompt": ""}, CompletionRequest)
    except msgspec.ValidationError as error:
        raise nest_error(PARAMS, out_of_range(error_handlers.of_validation(error, CompletionRequest))) from error


def find_difference(first: SamplingParams, second: SamplingParams) -> str | None:
    """Return the name of a parameter in which the tokens of two requests would differ; None: there is none."""
    for name in SamplingParams.__struct_fields__:
        if name not in OF_TEXT and getattr(first, name) != getattr(second, name):
            return name
    return None


def nest_params(error: RequestError) -> ParameterError:
    """Return an error about a parameter as one of the body."""
    return nest_error(PARAMS, error)
