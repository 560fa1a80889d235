"""A request's parameters in vLLM → those of tailrace's sampler.

vLLM's own fields mean what they mean in tailrace. tailrace's other fields come in `vllm_xargs` (`extra_args` offline),
under the names of docs/sampling.md (xargs.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.errors import ParameterError
from tailrace.integrations.field_texts import NoTokenizer, convert_texts
from tailrace.integrations.refusals import check_theirs
from tailrace.integrations.v1_engine import GREEDY_BELOW
from tailrace.integrations.vllm.fallbacks import call_or_none
from tailrace.integrations.vllm.xargs import ANY_SERVER, own_fields
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Slots
from tailrace.sampling.validation import check_kind

if TYPE_CHECKING:
    from vllm import SamplingParams as Theirs

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
SAME = (*PENALTIES, "top_p", "min_p", "seed", "min_tokens", "logprobs")  # in both, under the same name
OTHERWISE = {"temperature", "top_k", "logit_bias", "allowed_token_ids"}  # written differently
READ = {*SAME, *OTHERWISE, "bad_words_token_ids", "all_stop_token_ids", "extra_args"}  # of vLLM's parameters
# without what vLLM's V2 runner does to the logits itself
EDITS = (*PENALTIES, "min_tokens", "logit_bias", "bad_words", "allowed_token_ids", "logprobs")
NO_EDITS = {name: FIELDS[name].default for name in EDITS}
# what vLLM's own sampler must serve
LACKING = ("logprob_token_ids", "trace_decode_token_ids")


def check_values(params: Theirs) -> ParameterError | None:
    """Return what is wrong with tailrace's own fields, before a tokenizer is known; None if nothing is.

    vLLM's engine and workers check the request again when they read it, and would end if something were wrong only
    then. So nothing counts here that vLLM adds later.
    """
    try:
        check_kind("extra_args", params.extra_args or {}, dict)
        check_theirs(params.extra_args or (), ANY_SERVER)
        if own := own_fields(params):
            if lacking := name_lacking(params):
                first = next(iter(own))
                raise ParameterError(f"{first} can't be had beside {lacking}, which vLLM's own sampler serves", first)
            translate_params(params, (), own | convert_texts(own, NoTokenizer()))
    except ParameterError as error:
        return error
    return None


def translate_params(
    params: Theirs,
    bad_words: Sequence[Sequence[int]],
    own: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] = {},
) -> SamplingParams:
    """Return vLLM's parameters as tailrace's.

    Args:
        bad_words: the ids of the request's, which vLLM adds after the check of its other fields. own: tailrace's own
            fields, if they are known. fields: values that are not as the request asks.

    Raises:
        ParameterError: tailrace does not have what they ask for.
    """
    greedy = params.temperature < GREEDY_BELOW
    asked = {
        "temperature": 0.0 if greedy else params.temperature,
        "top_k": max(params.top_k, 0),
        "logit_bias": params.logit_bias or {},
        "allowed_token_ids": tuple(params.allowed_token_ids) if params.allowed_token_ids else None,
        "bad_words": tuple(map(tuple, bad_words)),
        **{name: getattr(params, name) for name in SAME},
        **(own_fields(params) if own is None else own),
    }
    return SamplingParams(**{**asked, **fields})


def name_lacking(params: Theirs) -> str:
    """Return why vLLM's own sampler must serve this request; "" if it need not."""
    if params.logprobs == -1:
        return "logprobs of the whole vocabulary"
    return next((name for name in LACKING if getattr(params, name, None) is not None), "")


def add_vllm_request(
    slots: Slots, slot: int, params: Theirs, fields: dict[str, Any], prompt: Sequence[int], **kept: Any
) -> str:
    """Give vLLM's request this slot. Returns why vLLM's own sampler must serve it instead; "" if it need not. fields:
    what is not as the request asks. kept: further arguments of `Slots.add`."""
    if lacking := name_lacking(params):
        return lacking

    def fill_slot() -> str:
        try:
            asked = translate_params(params, params.bad_words_token_ids or (), fields=fields)
            eos_token_ids = sorted(params.all_stop_token_ids)
            slots.add(slot, asked, prompt=prompt, eos_token_ids=eos_token_ids, **kept)
        except ParameterError as error:
            return str(error)
        return ""

    def empty_slot() -> None:
        if slots.slots[slot] is not None:
            slots.remove(slot)

    refusal = call_or_none("parameters of a request", fill_slot, empty_slot)
    return "parameters of a request, after an error in tailrace" if refusal is None else refusal
