"""tailrace's fields in a request's `custom_params`: which names may be there, and the parameters made of them.

The front end checks the fields where the request enters. It adds the parameters as a text, because SGLang sends no
nested lists to its scheduler. Imports no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.errors import ParameterError
from tailrace.integrations.engine_tokenizer import encoder_of
from tailrace.integrations.field_texts import convert_texts, find_text
from tailrace.integrations.refusals import FieldPlace, check_names, check_served, find_meant, list_asking
from tailrace.integrations.sglang.refused_fields import SGLANG, SGLANG_DRAFTS, THEIRS
from tailrace.params import FIELDS, SamplingParams
from tailrace.request.sampler_fields import PENALTIES

KEY = "__tailrace_params"  # of the text, among the custom params
# SGLang's top-p takes its mass from the whole distribution, not from what top-k keeps; its min-p comes last.
ORDER = ("temperature", "top_p", "top_k", "min_p")
READ_BY_SGLANG = frozenset({"thinking_budget"})  # of custom params
OWN = "__sglang_"  # beginning of the names that SGLang itself adds to the custom params
UNSEEDED = 42  # SGLang's seed of requests without one, with --enable-deterministic-inference
CUSTOM, GENERATE, CHAT = "custom_params", "/generate", "/v1/chat/completions"
INSTEAD = {name: f"SGLang's own {own}, outside of custom_params" for name, own in THEIRS.items()}
OUTSIDE = {name: f"SGLang's own {THEIRS[name]}" if name in THEIRS else f"{name} in custom_params" for name in FIELDS}
INSIDE = {
    drafts: FieldPlace("custom_params", "SGLang", refused, INSTEAD, READ_BY_SGLANG)
    for drafts, refused in ((False, SGLANG), (True, SGLANG_DRAFTS))
}


def find_own_fields(custom: Mapping[str, Any], drafts: bool, foreign: bool) -> dict[str, Any]:
    """Return tailrace's fields among a request's custom params.

    Args:
        drafts: the server has drafts. foreign: a custom logits processor may read other names.

    Raises:
        ParameterError: a name has no effect.
    """
    if KEY in custom:
        raise ParameterError(f"custom_params: {KEY} is a name of tailrace's own", KEY)
    names = [name for name in custom if not name.startswith(OWN)]
    check_names(names, INSIDE[drafts], foreign)
    return {name: custom[name] for name in names if name in FIELDS}


def check_outer_names(names: list[str], drafts: bool) -> None:
    """Raise ParameterError for names outside of the custom params by which somebody means a field of tailrace's. SGLang
    ignores names that it does not know."""
    check_names(names, INSIDE[drafts]._replace(name="SGLang's fields", theirs=OUTSIDE), True)


def check_body(dropped: Mapping[str, Any], path: str, reads_custom: bool, drafts: bool) -> None:
    """Raise ParameterError for the first name by which somebody asks for a field of tailrace's, and which is lost.

    Args:
        dropped: what SGLang ignores of a body. path: of the endpoint. reads_custom: the endpoint reads custom_params.
    """
    asking = list_asking(dropped)
    if reads_custom:
        return check_outer_names(asking, drafts)
    where = "custom_params in sampling_params" if path == GENERATE else f"custom_params at {CHAT}"
    theirs = {CUSTOM: where, **{name: f"{name} in {where}" for name in FIELDS}}
    lost = [name for name in asking if find_meant(name) not in THEIRS]
    names = [CUSTOM, *lost] if dropped.get(CUSTOM) else lost
    check_names(names, INSIDE[drafts]._replace(name=f"the body of {path}", theirs=theirs), True)


def make_params(own: Mapping[str, Any], theirs: Mapping[str, Any], tokenizer: Any, vocab_size: int) -> SamplingParams:
    """Return the sampler's parameters of a request.

    Args:
        own: tailrace's fields. theirs: SGLang's, as `read_fields` returns them.
        tokenizer: SGLang's, for texts; None if the server has none.

    Raises:
        ParameterError: a value is invalid.
    """
    for name in PENALTIES:
        if name in own and theirs.get(name, FIELDS[name].default) != FIELDS[name].default:
            raise ParameterError(f"{name} is given twice: in custom_params and outside", name)
    fields: dict[str, Any] = {"sampler_order": ORDER, **own}
    if waiting := find_text(own):
        if tokenizer is None:
            raise ParameterError(f"{waiting} must be given as token ids: this server has no tokenizer", waiting)
        fields |= convert_texts(own, encoder_of(tokenizer))
    kept = {name: value for name, value in theirs.items() if name not in PENALTIES}
    params = SamplingParams(**kept, **fields)
    check_served(params, vocab_size)
    return params


def read_fields(theirs: Any) -> dict[str, Any]:
    """Return SGLang's own fields of a request as tailrace has them. theirs: SGLang's SamplingParams, normalised, where
    top_k 1 at temperature 1 stands for temperature 0."""
    penalties = {name: getattr(theirs, name) for name in PENALTIES}
    if theirs.top_k == 1:
        return {"temperature": 0.0, **penalties}
    top_k = 0 if theirs.top_k >= 1 << 30 else theirs.top_k
    cut = {"top_p": theirs.top_p, "min_p": theirs.min_p}
    return {"temperature": theirs.temperature, "top_k": top_k, **cut, **penalties}


def find_seed(seed: int | None, deterministic: bool) -> int | None:
    """Return a request's seed. deterministic: a request without a seed has SGLang's, as with
    `--enable-deterministic-inference`."""
    return UNSEEDED if seed is None and deterministic else seed


def pack_params(params: SamplingParams) -> str:
    """Return the parameters as a text."""
    return msgspec.json.encode(params).decode()


def unpack_params(text: str) -> SamplingParams:
    """Return the parameters from `pack_params`."""
    return msgspec.json.decode(text, type=SamplingParams)
