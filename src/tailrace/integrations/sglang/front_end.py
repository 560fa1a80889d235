"""The front end of SGLang: tailrace's fields are checked where a request enters. A wrong field is an HTTP 400."""

from __future__ import annotations

from copy import copy
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_exec
from sglang.srt.sampling.sampling_params import SamplingParams as Theirs

from tailrace.errors import ParameterError
from tailrace.integrations.sglang.endpoints import has_drafts, register_endpoint_hooks, serves_tailrace
from tailrace.integrations.sglang.own_fields import (
    KEY,
    check_outer_names,
    find_own_fields,
    find_seed,
    make_params,
    pack_params,
    read_fields,
)
from tailrace.sampling import request_key

TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object"
SEND = "sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request"
SEEDS = "tailrace_seeds"  # attribute of SGLang's request, which SGLang may pickle: those of the sequences to come
# SGLang draws these requests' tokens in ways that pass tailrace's fields by.
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def install_front_end_hooks() -> None:
    """Hook the tokenizer manager and the endpoints. Called again it does nothing."""
    if TOKENIZER in HookRegistry._patched:
        return
    HookRegistry.register(TOKENIZER, create_checked_object, HookType.AROUND)
    HookRegistry.register(SEND, send_seeded, HookType.AROUND)
    register_endpoint_hooks()
    HookRegistry.apply_hooks()


def create_checked_object(original: Any, manager: Any, given: Any, *args: Any, **more: Any) -> Any:
    """Wrap the making of a request for the scheduler: add the sampler's parameters to its custom params.

    Raises:
        ParameterError: (a ValueError, which SGLang answers with 400) a field has no effect, or a wrong value.
    """
    if not serves_tailrace():
        return original(manager, given, *args, **more)
    if isinstance(given.sampling_params, dict):
        names = [name for name in given.sampling_params if name not in Theirs.__struct_fields__]
        check_outer_names(names, has_drafts())
    made = original(manager, given, *args, **more)
    params: Any = getattr(made, "sampling_params", None)
    if isinstance(params, Theirs):
        if params.custom_params is not None:
            add_own_params(params, given, manager)
        add_seeds(params, given)
    return made


def add_seeds(params: Theirs, given: Any) -> None:
    """Give a request with several sequences a seed for each: SGLang would send all with the same one."""
    seed = find_seed(params.sampling_seed, get_exec().deterministic.enable_deterministic_inference)
    if params.n > 1 and seed is not None:
        setattr(given, SEEDS, [request_key(seed, index) for index in range(params.n)])


async def send_seeded(original: Any, manager: Any, made: Any) -> None:
    """Wrap the sending of a sequence to the scheduler: the sequence gets its seed. A sequence without tokens fills
    SGLang's cache before the others."""
    state = manager.rid_to_state.get(made.rid)
    seeds = getattr(getattr(state, "obj", None), SEEDS, None)  # a list that the copies of a request share
    if seeds and made.sampling_params.max_new_tokens != 0:
        made.sampling_params = copy(made.sampling_params)
        made.sampling_params.sampling_seed = seeds.pop(0)
    await original(manager, made)


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
