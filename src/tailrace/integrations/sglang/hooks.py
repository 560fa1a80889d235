"""tailrace's hooks in SGLang, in SGLang's own registries.

- The start of a server (`register_resolution_hook`): SGLang keeps tailrace where it would select its pytorch backend,
  and refuses what tailrace can't serve.
- The front end's process (`HookRegistry`): fields are checked where a request enters (front_end.py).
- A process that samples (`HookRegistry`): the batch carries its requests, and drafts are verified by tailrace.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.arg_groups import validation_hook
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

BACKEND = "tailrace"
DEVICES = ("cuda", "cpu")
# They verify by SGLang's function eagle_sample; UNO, DFLASH and DSPARK have functions of their own.
ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP", "NGRAM")
REQUESTS = "tailrace_requests"  # attribute of SGLang's batch
BATCH = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"


# ---- the start of a server


def install_start_hooks() -> None:
    """Register the hooks of a server's start."""
    for step in ("handle_cpu_backends", "handle_deterministic_inference"):
        register_resolution_hook(step)(keep_backend)
    register_resolution_hook("handle_other_validations")(check_server)
    # check_watermark_server_args allows only these; a watermark's token is chosen before the draw
    validation_hook.BUILT_IN_SAMPLING_BACKENDS = validation_hook.BUILT_IN_SAMPLING_BACKENDS | {BACKEND}


def keep_backend(server_args: Any, previous: Any) -> None:
    """Wrap a step that selects SGLang's pytorch backend: `--sampling-backend tailrace` stays."""
    chosen = resolving_view(server_args).sampling_backend
    previous(server_args)
    if chosen == BACKEND:
        declare_resolution(server_args, "tailrace", sampling_backend=BACKEND)


def check_server(server_args: Any, previous: Any) -> None:
    """Wrap the last validations: refuse a server that tailrace can't serve, and prepare the front end.

    Raises:
        ValueError: with the flag and the reason.
    """
    previous(server_args)
    config = resolving_view(server_args)
    if config.sampling_backend != BACKEND:
        return
    if reason := explain_refused_server(config):
        raise ValueError(f"--sampling-backend tailrace: {reason}")
    from tailrace.integrations.sglang.front_end import install_front_end_hooks

    install_front_end_hooks()


def explain_refused_server(config: Any) -> str:
    """Return why tailrace can't serve this configuration; "" if it can."""
    if config.device not in DEVICES:
        return f"--device must be {' or '.join(DEVICES)}, got {config.device}"
    if config.tokenizer_worker_num > 1:
        return "--tokenizer-worker-num must be 1, because SGLang loads no plug-in in the other workers"
    if config.dllm_algorithm is not None:
        return "--dllm-algorithm draws its tokens without a sampling backend"
    if config.speculative_algorithm is None:
        return ""
    if config.speculative_algorithm.upper() not in ALGORITHMS:
        return f"--speculative-algorithm must be one of {', '.join(ALGORITHMS)}, got {config.speculative_algorithm}"
    if config.speculative_use_rejection_sampling:
        return "--speculative-use-rejection-sampling draws by SGLang's own kernels; tailrace verifies drafts exactly"
    if config.speculative_accept_threshold_single != 1.0 or config.speculative_accept_threshold_acc != 1.0:
        return "--speculative-accept-threshold-* below 1 change the distribution; tailrace verifies drafts exactly"
    return ""


# ---- a process that samples


def install_sampling_hooks() -> None:
    """Hook the batch, the model runner and the verification of drafts. Called again it does nothing."""
    if f"{RUNNER}.sample" in HookRegistry._patched:
        return
    for name, hook in (
        ("adjusted_from_schedule_batch", note_requests),
        ("adjusted_merge_batch", merge_requests),
        ("adjusted_filter_batch", filter_requests),
        ("copy_for_forward", copy_requests),
    ):
        HookRegistry.register(f"{BATCH}.{name}", hook, HookType.AFTER)
    HookRegistry.register(f"{RUNNER}.sample", sample_in_step, HookType.AROUND)
    HookRegistry.apply_hooks()


def install_verification_hooks() -> None:
    """Hook the verification of drafts. Called again it does nothing."""
    from tailrace.integrations.sglang.verification import UTILS, TreeVerifier

    if f"{UTILS}.eagle_sample" in HookRegistry._patched:
        return
    verifier = TreeVerifier()
    for target, hook in (
        (f"{UTILS}.eagle_sample", verifier.sample_tree),
        (f"{UTILS}._verify_uses_greedy", verifier.uses_greedy),
        (f"{UTILS}._can_use_sparse_uno_tree_target_sampling", verifier.uses_targets),
        ("sglang.srt.speculative.uno_utils.sample_uno_tree_target_tokens", verifier.sample_targets),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.apply_hooks()


def note_requests(result: None, info: Any, batch: Any, *args: Any, **more: Any) -> None:
    """Let SGLang's batch carry its requests."""
    setattr(info, REQUESTS, list(batch.reqs))


def merge_requests(result: None, info: Any, other: Any) -> None:
    """Append the requests of another batch."""
    mine, theirs = getattr(info, REQUESTS, None), getattr(other, REQUESTS, None)
    setattr(info, REQUESTS, None if mine is None or theirs is None else [*mine, *theirs])


def filter_requests(result: None, info: Any, keep_indices: list[int], *args: Any, **more: Any) -> None:
    """Keep the requests of these rows."""
    if (requests := getattr(info, REQUESTS, None)) is not None:
        setattr(info, REQUESTS, [requests[i] for i in keep_indices])


def copy_requests(result: Any, info: Any) -> None:
    """Give the copy of a batch the requests of the original."""
    setattr(result, REQUESTS, getattr(info, REQUESTS, None))


def sample_in_step(original: Any, runner: Any, logits_output: Any, forward_batch: Any) -> Any:
    """Wrap the model runner's `sample`: tell tailrace's sampler which requests are in the step, and how long they
    are."""
    from tailrace.integrations.sglang.sampler import SglangSampler

    sampler = runner.sampler
    if not isinstance(sampler, SglangSampler):
        return original(runner, logits_output, forward_batch)
    sampler.step = read_step(forward_batch, len(logits_output.next_token_logits))
    try:
        return original(runner, logits_output, forward_batch)
    finally:
        sampler.step = None


def read_step(batch: Any, count: int) -> Any:
    """Return the step of SGLang's forward batch with this number of rows; None if the requests are not known."""
    from tailrace.integrations.sglang.drawing import DrawStep

    requests, lengths = getattr(batch.sampling_info, REQUESTS, None), batch.seq_lens_cpu
    if requests is None or len(requests) != count:
        return None
    if lengths is None or len(lengths) != count:
        lengths = batch.seq_lens
    ends = None if batch.forward_mode.is_decode() else torch.tensor(batch.extend_seq_lens_cpu).cumsum(0) - 1
    last = batch.input_ids[:count] if ends is None else batch.input_ids[ends.to(batch.input_ids.device)]
    return DrawStep(lengths, requests, last)
