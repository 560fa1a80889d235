"""What vLLM's front end asks of a request before the engine sees it: that all of it acts, and that texts are token ids.

A request that would lose a field gets an HTTP 400 (a ValueError offline) that names the field and the reason.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from vllm import SamplingParams

from tailrace.errors import ParameterError
from tailrace.integrations.engine_tokenizer import encoder_of
from tailrace.integrations.field_texts import NoTokenizer, convert_texts, find_text
from tailrace.integrations.refusals import check_names, check_served
from tailrace.integrations.v1_engine import has_other_plugins
from tailrace.integrations.vllm import http_requests, layout, refused_fields
from tailrace.integrations.vllm.fallbacks import call_or_none, log, raise_found
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import describe_v2_drafts, describe_verification
from tailrace.integrations.vllm.translate import check_values, translate_params
from tailrace.integrations.vllm.xargs import SHARED, describe_place, own_fields

INPUTS = "vllm.v1.engine.input_processor.InputProcessor"


def install_door() -> None:
    """Replace vLLM's checks of a request, unless this vLLM has others."""
    try:
        layout.replace_functions(OURS, {INPUTS: {"tokenizer"}})
    except AttributeError as error:
        log.error("tailrace checks no requests at vLLM's door, fields may be lost: %s", error)


class Door:
    """The rules of one server.

    - place: the names in `vllm_xargs`, with the refused fields of this server.
    - shared: the refused fields that vLLM has itself, by vLLM's names, with reasons.
    - leaves_all: why vLLM's own sampler serves every request of this server; "" if tailrace does.
    - drafted: tailrace verifies drafts.
    - read_by_others: a logits processor, a connector or a plug-in of somebody else's may read `vllm_xargs`.
    """

    def __init__(self, vllm_config: Any) -> None:
        model, drafts = vllm_config.model_config, vllm_config.speculative_config
        second, self.mode = bool(getattr(vllm_config, "use_v2_model_runner", False)), model.logprobs_mode
        self.vocab_size = model.get_vocab_size()
        refused = refused_fields.BY_RUNNER[second, drafts is not None]
        self.place = describe_place(refused)
        self.shared = {SHARED[name]: reason for name, reason in refused.items() if name in SHARED}
        self.leaves_all = describe_v2_limits(vllm_config) if second else describe_verification(vllm_config)
        self.drafted = drafts is not None and not self.leaves_all
        transfers = getattr(vllm_config, "kv_transfer_config", None) or getattr(vllm_config, "ec_transfer_config", None)
        self.read_by_others = bool(model.logits_processors or transfers or has_other_plugins("vllm"))

    def find_error(self, params: SamplingParams, tokenizer: Any) -> ParameterError | None:
        """Return what is wrong with the request on this server; None if nothing is."""
        try:
            self.check_request(params, tokenizer)
        except ParameterError as error:
            return error
        return None

    def check_request(self, params: SamplingParams, tokenizer: Any) -> None:
        """Raise ParameterError for a field that would have no effect."""
        for name, reason in self.shared.items():
            if getattr(params, name, None) is not None:
                raise ParameterError(f"{name} can't be had on this server: {reason}", name)
        check_names(params.extra_args or (), self.place, self.read_by_others)
        if not (own := own_fields(params)):
            return
        first = next(iter(own))
        if self.leaves_all:
            raise ParameterError(f"{first} can't be had on this server: {self.leaves_all}", first)
        if params.logprobs is not None and not self.mode.endswith("_logprobs"):
            text = f"{first} can't be had beside logprobs on this server, whose --logprobs-mode is {self.mode}"
            raise ParameterError(text, first)
        if tokenizer is None and (waiting := find_text(own)):
            raise ParameterError(f"{waiting} must be given as token ids: this server has no tokenizer", waiting)
        asked = translate_params(params, (), own | convert_texts(own, NoTokenizer()))
        check_served(asked, self.vocab_size)


def describe_v2_limits(vllm_config: Any) -> str:
    """Return why vLLM's V2 runner draws everything itself on this server; "" if tailrace draws (v2.why_not)."""
    if getattr(vllm_config, "watermark_config", None) is not None:
        return "vLLM's own watermark"
    return describe_v2_drafts(vllm_config)


DOORS: WeakKeyDictionary[Any, Door] = WeakKeyDictionary()  # of this process, by vLLM's own checker of inputs


def open_door(theirs: Function, inputs: Any, vllm_config: Any, *args: Any, **more: Any) -> None:
    """Make vLLM's checker of inputs, and the rules beside it."""
    theirs(inputs, vllm_config, *args, **more)
    if vllm_config.model_config.runner_type != "pooling":
        door = call_or_none("check of fields", lambda: Door(vllm_config))
        if door is not None:
            DOORS[inputs] = door
            call_or_none("check of fields", http_requests.install_checks)


def check_arguments(theirs: Function, params: SamplingParams) -> None:
    """Run vLLM's checks, then tailrace's of its own fields.

    A field that every server of this process refuses is refused here: an answer that is streamed has no status later.

    Raises:
        VLLMValidationError: over HTTP a 400.
    """
    theirs(params)
    raise_found(partial(check_values, params))
    raise_found(partial(find_common_error, params))


def find_common_error(params: SamplingParams) -> ParameterError | None:
    """Return what is wrong with the request on every server of this process; None if one may serve it."""
    errors = [door.find_error(params, inputs.tokenizer) for inputs, door in list(DOORS.items())]
    return errors[0] if errors and all(errors) else None


def check_params(theirs: Function, inputs: Any, params: Any, *args: Any, **more: Any) -> Any:
    """Run vLLM's checks that need the configuration, then tailrace's."""
    found = theirs(inputs, params, *args, **more)
    if isinstance(params, SamplingParams) and (door := DOORS.get(inputs)) is not None:
        raise_found(partial(door.find_error, params, inputs.tokenizer))
    return found


def convert_params(theirs: Function, params: SamplingParams, tokenizer: Any) -> None:
    """Convert the words of a request to token ids: vLLM its own, then tailrace's, in this request's own mapping."""
    theirs(params, tokenizer)

    def convert() -> ParameterError | None:
        try:
            if own := own_fields(params):
                params.extra_args = {**(params.extra_args or {}), **convert_texts(own, encoder_of(tokenizer))}
                translate_params(params, params.bad_words_token_ids or ())
        except ParameterError as error:
            return error
        return None

    raise_found(convert)


def check_drafted(theirs: Function, params: SamplingParams, speculative_config: Any) -> None:
    """Run vLLM's check of fields that its own verification of drafts lacks (min_p, logit_bias), unless tailrace
    verifies drafts on this server."""
    for inputs, door in list(DOORS.items()):
        if inputs.speculative_config is speculative_config and door.drafted:
            return
    theirs(params, speculative_config)


OURS: dict[str, Function] = {
    "vllm.SamplingParams._validate_spec_decode": check_drafted,
    "vllm.SamplingParams.update_from_tokenizer": convert_params,
    f"{INPUTS}.__init__": open_door,
    f"{INPUTS}._validate_params": check_params,
}
