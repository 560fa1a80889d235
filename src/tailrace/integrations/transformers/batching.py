"""tailrace in transformers' continuous batching: each request with its own parameters and seed.

A manager gets one logits processor of its own kind, which draws the tokens of the step's requests. The manager's
`add_request` takes every field of SamplingParams that acts here, by name, and refuses the others at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import GenerationOutput
from transformers.generation.continuous_batching.utils import WorkloadHints

from tailrace.errors import ParameterError
from tailrace.integrations.refusals import FieldPlace, check_fields, check_names
from tailrace.integrations.transformers.batch_sampler import PARAMS, BatchSampler
from tailrace.integrations.transformers.generate import without_warpers
from tailrace.integrations.transformers.processor import check_params, list_eos_ids
from tailrace.integrations.transformers.refused_fields import CONTINUOUS_BATCHING
from tailrace.params import FIELDS, NEUTRAL, SamplingParams, find_void
from tailrace.sampling import Slots
from tailrace.sampling.validation import check_kind, checked_ids

PATH = "continuous batching"
PLACE = FieldPlace("add_request", PATH, CONTINUOUS_BATCHING)
RESULT_S = 0.1  # how long one look for a result waits


def generate_batch(
    model: Any,
    inputs: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    generation_config: GenerationConfig | None = None,
    continuous_batching_config: ContinuousBatchingConfig | None = None,
    max_new_tokens: int | None = None,
) -> list[GenerationOutput]:
    """Generate by continuous batching, and return one output for each prompt, in their order.

    Args:
        model: a model of transformers with `init_continuous_batching`.
        inputs: token ids of each prompt.
        params: of all requests, or one for each. None: the generation config decides.
        max_new_tokens: of requests without `max_tokens`.

    Raises:
        ParameterError: (a ValueError) for a field that can't act here, another number of parameters, or an argument of
            another type. RuntimeError: a request has failed.

    Example:
        >>> outputs = generate_batch(model, [[5, 9], [7]], [SamplingParams(seed=1), SamplingParams(temperature=0.0)])
        >>> [output.generated_tokens for output in outputs]
    """
    if not hasattr(model, "init_continuous_batching"):
        raise ParameterError(f"model must be a generative model of transformers, got {type(model).__name__}", "model")
    if params is not None:
        check_params(params)
    prompts = [checked_ids("inputs", ids, 2**32) for ids in inputs]
    each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise ParameterError(f"params must be one for each of {len(prompts)} prompts, got {len(each)}", "params")
    hints = WorkloadHints(max(map(len, prompts), default=0), max_new_tokens or 0, len(prompts))
    manager = attach_sampler(model.init_continuous_batching(generation_config, continuous_batching_config, hints))
    for one in filter(None, each):
        check_request(manager, one)
    found: dict[str, GenerationOutput] = {}
    manager.start()
    try:
        add = partial(manager.add_request, max_new_tokens=max_new_tokens)
        wanted = [add(ids, params=one) for ids, one in zip(prompts, each, strict=True)]
        while len(found) < len(wanted) and manager.is_running():
            if (output := manager.get_result(timeout=RESULT_S)) is not None and output.is_finished():
                found[output.request_id] = output
    finally:
        manager.stop(block=True)
        manager.destroy()
    if failed := next((one.error for one in found.values() if one.error), None) or len(found) < len(wanted):
        raise RuntimeError(f"continuous batching has ended early: {failed}")
    return [found[name] for name in wanted]


def attach_sampler(manager: ContinuousBatchingManager) -> ContinuousBatchingManager:
    """Let tailrace draw the tokens of a manager that has not been started, and return it.

    `add_request` then takes fields of SamplingParams by name. A field that a request leaves out has the value of the
    manager's generation config. Draws are on the host's clock: CUDA graphs, compilation and asynchronous batching are
    off.

    Raises:
        ParameterError: the manager has been started, or its generation config has a processor that can't run
            here, or it is no manager.
    """
    check_kind("manager", manager, ContinuousBatchingManager)
    if manager.batch_processor is not None:
        raise ParameterError("the manager has been started: attach_sampler comes before", "manager")
    if manager.num_return_sequences != 1:
        text = (
            "num_return_sequences must be 1 in continuous batching, which copies the first token: add the prompt again"
        )
        raise ParameterError(text, "num_return_sequences")
    config = manager.generation_config
    processors = manager.model._get_logits_processor(config)
    before, defaults = without_warpers(processors, bool(config.do_sample))
    for one in before:
        if getattr(one, "supports_continuous_batching", None) is not True:
            name = type(one).__name__
            raise ParameterError(f"{name} can't run in {PATH}: give its field with the request", "generation_config")
    resolved = manager.continuous_batching_config
    sampler = BatchSampler(defaults, reports=resolved.return_logprobs)
    manager.logit_processor.logits_processor = LogitsProcessorList([*before, sampler])
    manager.logit_processor.tensors_required, manager.logit_processor.do_processing = 1, True
    manager.logit_processor._retrieve_processors_kwargs()
    resolved.use_async_batching, resolved.use_cuda_graph = False, (False, False)
    resolved.varlen_compile_config = resolved.decode_compile_config = None
    manager.add_request = partial(add_request, manager.add_request, manager)  # type: ignore[method-assign]
    if not hasattr(ModelRunner._sample, "theirs"):
        ModelRunner._sample = report_draws(ModelRunner._sample)
    return manager


def add_request(
    theirs: Any,
    manager: ContinuousBatchingManager,
    input_ids: Sequence[int],
    request_id: str | None = None,
    max_new_tokens: int | None = None,
    streaming: bool = False,
    record_timestamps: bool = False,
    eos_token_id: int | list[int] | None = None,
    params: SamplingParams | None = None,
    **fields: Any,
) -> str | None:
    """Add a request. (More than six parameters: transformers' own, and the fields of SamplingParams.)

    Args:
        params: all parameters. None: the fields by name, and for the others the generation config's values.

    Raises:
        ParameterError: for a field that can't act here, or whose value is out of range.
    """
    if params is None:
        params = read_fields(manager, fields)
    elif fields:
        raise ParameterError(f"{min(fields)} is given beside params: it belongs there", min(fields))
    check_request(manager, params)
    if max_new_tokens is None or params.max_tokens is not None:
        max_new_tokens = params.max_tokens
    eos = list_eos_ids(manager.generation_config.eos_token_id if eos_token_id is None else eos_token_id)
    ends = [*(() if params.ignore_eos else eos), *params.stop_token_ids] or [-1]
    more = {"streaming": streaming, "record_timestamps": record_timestamps, "eos_token_id": ends}
    return theirs(list(input_ids), request_id, max_new_tokens, **more, **{PARAMS: (params, tuple(eos))})


def read_fields(manager: ContinuousBatchingManager, fields: Mapping[str, Any]) -> SamplingParams:
    """Return a request's parameters: its fields, and for the others the generation config's values. A value of the
    config that contradicts a field is left out.

    Raises:
        ParameterError: see `add_request`.
    """
    check_names([name for name in fields if name not in CONTINUOUS_BATCHING], PLACE)
    defaults = given_fields(find_sampler(manager).defaults)
    voiding = {name for name in defaults if find_void(fields, {name: defaults[name]})}
    left_out = {*fields, *voiding, *find_void(defaults, fields)}
    return SamplingParams(**{name: defaults[name] for name in defaults if name not in left_out}, **fields)


def check_request(manager: ContinuousBatchingManager, params: SamplingParams) -> None:
    """Raise ParameterError if the parameters can't be served here."""
    check_fields(params, CONTINUOUS_BATCHING, PATH)
    vocab_size = manager.model.config.get_text_config().vocab_size
    Slots(1, vocab_size).add(0, params, prompt=(), key=0, handled_by_caller=BatchSampler.handled)


def given_fields(params: SamplingParams) -> dict[str, Any]:
    """Return the fields that are not at their default."""
    return {name: value for name in FIELDS if (value := getattr(params, name)) != NEUTRAL[name]}


def find_sampler(manager: ContinuousBatchingManager) -> BatchSampler:
    """Return the processor of a manager that `attach_sampler` has prepared."""
    return next(one for one in manager.logit_processor.logits_processor if isinstance(one, BatchSampler))


def report_draws(theirs: Any) -> Any:
    """Return transformers' function that takes tokens from scores, with tailrace's own logprobs."""

    def take_tokens(runner: ModelRunner, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        theirs(runner, scores, output_ids)
        for one in runner.logit_processor.logits_processor:
            if isinstance(one, BatchSampler) and runner.return_logprobs:
                found = one.logprobs.to(output_ids.device)
                output_ids[1, : len(found)].copy_(found.view(dtype=torch.int32))

    take_tokens.theirs = theirs  # type: ignore[attr-defined]
    return take_tokens
