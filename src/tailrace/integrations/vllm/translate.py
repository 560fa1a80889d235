"""A request's parameters in vLLM → those of tailrace's sampler.

vLLM's own fields mean what they mean in tailrace. tailrace's other fields come in `vllm_xargs` (`extra_args` offline),
under the names of docs/sampling.md; a name that tailrace does not have is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tailrace.errors import ParameterError
from tailrace.params import FIELDS, SamplingParams

if TYPE_CHECKING:
    from vllm import SamplingParams as Theirs

GREEDY_BELOW = 1e-5  # vLLM's: such a temperature is none
# vLLM has these itself
THEIRS = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "logprobs", "logprobs_mode", "logit_bias", "allowed_token_ids", "bad_words", "logprob_token_ids"),
}
# without what vLLM's V2 runner does to the logits itself
EDITS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logit_bias", "bad_words")
NO_EDITS = {name: getattr(SamplingParams(), name) for name in (*EDITS, "allowed_token_ids", "logprobs")}
# what extra_args may hold: what the sampler acts on, and what is written the same over HTTP
OURS = {
    name: field for name, field in FIELDS.items() if name not in THEIRS and not field.instead and field.http == "same"
}


def own_fields(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """tailrace's fields among `extra_args`.

    Raises:
        ParameterError: one has a value of another type.
    """
    found = {name: value for name, value in (extra_args or {}).items() if name in OURS}
    try:
        return {name: msgspec.convert(value, OURS[name].type) for name, value in found.items()}
    except msgspec.ValidationError as error:
        bad = next(name for name, value in found.items() if not fits(name, value))
        raise ParameterError(f"{bad}: {error}", bad) from error


def fits(name: str, value: Any) -> bool:
    """The value has the type of the field."""
    try:
        msgspec.convert(value, OURS[name].type)
    except msgspec.ValidationError:
        return False
    return True


def translated(params: Theirs, logprobs_mode: Literal["raw", "processed"] = "raw") -> SamplingParams:
    """vLLM's parameters as tailrace's.

    Raises:
        ParameterError: tailrace does not have what they ask for.
    """
    own = own_fields(params.extra_args)
    greedy = params.temperature < GREEDY_BELOW
    return SamplingParams(
        temperature=0.0 if greedy else params.temperature,
        top_p=params.top_p,
        top_k=max(params.top_k, 0),
        min_p=params.min_p,
        seed=params.seed,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        min_tokens=params.min_tokens,
        logit_bias=params.logit_bias or {},
        allowed_token_ids=tuple(params.allowed_token_ids) if params.allowed_token_ids else None,
        bad_words=tuple(map(tuple, params.bad_words_token_ids or ())),
        logprobs=params.logprobs,
        logprobs_mode=logprobs_mode,
        **own,
    )


def refused(params: Theirs) -> str:
    """Why vLLM's own sampler must serve the request, in a word or two; "" if it need not."""
    if params.logprobs == -1:
        return "logprobs of the whole vocabulary"
    if getattr(params, "logprob_token_ids", None) is not None:
        return "logprob_token_ids"
    if getattr(params, "thinking_token_budget", None) is not None:
        return "thinking_token_budget"
    if getattr(params, "trace_decode_token_ids", None) is not None:
        return "trace_decode_token_ids"
    return ""
