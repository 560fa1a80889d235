"""The front end of SGLang: tailrace's fields are checked where a request enters. A wrong field is an HTTP 400."""

from __future__ import annotations

from typing import Any

import orjson
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.sampling.sampling_params import SamplingParams as Theirs

from tailrace.errors import ParameterError
from tailrace.integrations.sglang.own_fields import (
    KEY,
    check_outer_names,
    find_own_fields,
    make_params,
    pack_params,
    read_fields,
)

TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object"
SERVING = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request"
# SGLang draws these requests' tokens in ways that pass tailrace's fields by.
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def install_front_end_hooks() -> None:
    """Hook the tokenizer manager and OpenAI's endpoints. Called again it does nothing."""
    if TOKENIZER in HookRegistry._patched:
        return
    HookRegistry.register(TOKENIZER, create_checked_object, HookType.AROUND)
    HookRegistry.register(SERVING, handle_checked_request, HookType.AROUND)
    HookRegistry.apply_hooks()


def create_checked_object(original: Any, manager: Any, given: Any, *args: Any, **more: Any) -> Any:
    """Wrap the making of a request for the scheduler: add the sampler's parameters to its custom params.

    Raises:
        ParameterError: (a ValueError, which SGLang answers with 400) a field has no effect, or a wrong value.
    """
    if get_exec().kernel.sampling_backend != "tailrace":
        return original(manager, given, *args, **more)
    if isinstance(given.sampling_params, dict):
        names = [name for name in given.sampling_params if name not in Theirs.__struct_fields__]
        check_outer_names(names, has_drafts())
    made = original(manager, given, *args, **more)
    params: Any = getattr(made, "sampling_params", None)
    if isinstance(params, Theirs) and params.custom_params is not None:
        add_own_params(params, given, manager)
    return made


def add_own_params(params: Theirs, given: Any, manager: Any) -> None:
    """Check the custom params of a request, and add the sampler's parameters to them.

    Raises:
        ParameterError: a field has no effect, or a wrong value.
    """
    if not isinstance(params.custom_params, dict):
        raise ParameterError("custom_params must be an object", "custom_params")
    foreign = getattr(given, "custom_logit_processor", None) is not None
    own = find_own_fields(params.custom_params, has_drafts(), foreign)
    if not own:
        return
    if reason := explain_passed_by(params, given, own):
        raise ParameterError(f"custom_params: {', '.join(own)} can't be had {reason}", next(iter(own)))
    made = make_params(own, read_fields(params), manager.tokenizer, manager.model_config.vocab_size)
    params.custom_params = {**params.custom_params, KEY: pack_params(made)}


def explain_passed_by(params: Theirs, given: Any, own: dict[str, Any]) -> str:
    """Return with what tailrace's own fields can't be had; "" if they can."""
    features = get_exec().features
    if get_exec().deterministic.rl_on_policy_target is not None:
        return "with --rl-on-policy-target, whose trainer knows only SGLang's own fields"
    if (params.beam_width or 1) > 1:
        return "with beam_width, which draws nothing"
    if getattr(given, "return_sampling_mask", False):
        return "with return_sampling_mask, which SGLang makes of its own fields"
    marked = params.watermark is not None and params.watermark.enabled is not False
    if marked or features.watermark_enforce_all or (features.watermark_default_enabled and params.watermark is None):
        return "with SGLang's watermark, which chooses the token"
    if "forced_token_ids" in own and any(getattr(params, name) is not None for name in GRAMMARS):
        return "with a grammar"
    return ""


async def handle_checked_request(original: Any, serving: Any, request: Any, raw_request: Any) -> Any:
    """Wrap OpenAI's endpoints: tailrace's fields outside of custom_params are an error, because SGLang drops names that
    it does not know."""
    if get_exec().kernel.sampling_backend == "tailrace" and raw_request is not None:
        try:
            body = orjson.loads(await raw_request.body())
            check_outer_names([name for name in body if name not in type(request).model_fields], has_drafts())
        except ParameterError as error:
            return serving.create_error_response(message=str(error), err_type="BadRequest", status_code=400)
    return await original(serving, request, raw_request)


def has_drafts() -> bool:
    """Return whether the server of this process has drafts."""
    return get_spec().speculative_algorithm is not None
