"""What of vLLM is replaced, and by what."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitBiasLogitsProcessor, LogitsProcessors, MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.worker_base import WorkerBase

import tailrace
from tailrace.integrations.vllm import door, layout, masks, v2
from tailrace.integrations.vllm.draws import sample_for_vllm
from tailrace.integrations.vllm.fallbacks import call_or_none, log
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import BatchFollower
from tailrace.integrations.vllm.translate import READ
from tailrace.integrations.vllm.verification import verify_drafts

WANTED = {
    "vllm.SamplingParams": READ,
    "vllm.v1.outputs.LogprobsTensors": ("logprob_token_ids", "logprobs", "selected_token_ranks"),
    "vllm.v1.outputs.SamplerOutput": ("sampled_token_ids", "logprobs_tensors"),
    "vllm.v1.sample.logits_processor.BatchUpdate": {"removed", "added", "moved"},
    "vllm.v1.sample.logits_processor.build_logitsprocs": ("vllm_config", "device", "is_pin_memory"),
    "vllm.v1.sample.metadata.SamplingMetadata": {"max_num_logprobs", "logprob_token_ids", "logitsprocs", "all_greedy"},
    "vllm.v1.sample.rejection_sampler.RejectionSampler.forward": (
        *("self", "metadata", "draft_probs", "logits", "sampling_metadata"),
    ),
    "vllm.v1.sample.sampler.Sampler.forward": ("self", "logits", "sampling_metadata", "predict_bonus_token"),
    "vllm.v1.spec_decode.metadata.SpecDecodeMetadata": {"draft_token_ids", "num_draft_tokens"},
}


def install_patches() -> None:
    """Replace them, once: all, or nothing.

    Raises:
        AttributeError: this vLLM is built differently.
    """
    layout.replace_functions(OURS, WANTED)
    call_or_none("sampling masks", masks.install_masks)
    call_or_none("check of fields", door.install_door)


def begin_worker(theirs: Function, worker: WorkerBase, vllm_config: Any, *args: Any, **more: Any) -> None:
    """vLLM's worker, which is about to make its runner: if of V2, that has another sampler."""
    theirs(worker, vllm_config, *args, **more)
    if getattr(vllm_config, "use_v2_model_runner", False):
        call_or_none("V2 runner", v2.install_v2)


def build_logitsprocs(
    theirs: Function, vllm_config: Any, device: torch.device, is_pin_memory: bool, *args: Any, **more: Any
) -> LogitsProcessors:
    """vLLM's logits processors, and one that follows the batch."""
    processors = theirs(vllm_config, device, is_pin_memory, *args, **more)
    if vllm_config.model_config.runner_type != "pooling":
        call_or_none("follower of the batch", lambda: add_follower(processors, vllm_config, device, is_pin_memory))
    return processors


def add_follower(processors: LogitsProcessors, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
    """Add the follower of the batch. Beside drafts add vLLM's processors of logit_bias and min_p, which it leaves out
    there: its own sampler may have to serve a step."""
    follower = BatchFollower(vllm_config, device, is_pin_memory)
    if follower.drafting and not follower.verified_otherwise:
        processors.non_argmax_invariant.append(LogitBiasLogitsProcessor(vllm_config, device, is_pin_memory))
        processors.argmax_invariant.append(MinPLogitsProcessor(vllm_config, device, is_pin_memory))
    processors.argmax_invariant.append(follower)
    log.info("tailrace %s samples for vLLM in this process, on %s", tailrace.__version__, device)


def make_metadata(theirs: Function, batch: InputBatch) -> SamplingMetadata:
    """vLLM's description of the batch, with the tokens of the output if tailrace's draws need them."""
    before = batch.logitsprocs_need_output_token_ids
    follower = next((one for one in batch.logitsprocs.argmax_invariant if isinstance(one, BatchFollower)), None)
    if follower is not None and call_or_none("follower of the batch", follower.needs_output):
        batch.logitsprocs_need_output_token_ids = True
    try:
        return theirs(batch)
    finally:
        batch.logitsprocs_need_output_token_ids = before


OURS: dict[str, Function] = {
    "vllm.SamplingParams._verify_args": door.check_arguments,
    "vllm.v1.sample.logits_processor.build_logitsprocs": build_logitsprocs,
    "vllm.v1.sample.rejection_sampler.RejectionSampler.forward": verify_drafts,
    "vllm.v1.sample.sampler.Sampler.forward": sample_for_vllm,
    "vllm.v1.worker.gpu_input_batch.InputBatch._make_sampling_metadata": make_metadata,
    "vllm.v1.worker.gpu_model_runner.build_logitsprocs": build_logitsprocs,
    "vllm.v1.worker.worker_base.WorkerBase.__init__": begin_worker,
}
