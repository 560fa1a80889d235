"""Sampling masks (`--return-sampling-mask`) in vLLM's V1 runner on a CPU; vLLM itself has them in its V2 runner alone.

vLLM's outputs carry them in either runner: what is missing in V1 is who fills them in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1 import outputs
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tailrace.integrations.vllm import layout
from tailrace.integrations.vllm.fallbacks import call_or_none, log
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import BatchFollower
from tailrace.sampling import Sampled

if TYPE_CHECKING:
    from vllm.v1.outputs import SamplingMaskLists

# lists of several tokens each
WANTED = {"vllm.v1.outputs.SamplingMaskLists": {"cu_num_generated_tokens"}}


def install_masks() -> None:
    """Replace vLLM's refusal, and what its runner returns, unless this vLLM has no place for masks."""
    try:
        layout.replace_functions(OURS, WANTED)
    except AttributeError as error:
        log.info("tailrace gives vLLM's V1 runner no sampling masks: %s", error)


def check_replay_config(theirs: Function, config: VllmConfig) -> None:
    """vLLM's check, but for its first question: whether the runner is V2."""
    theirs(AsV2(config) if current_platform.is_cpu() else config)


class AsV2:
    """A configuration whose runner is V2."""

    use_v2_model_runner = True

    def __init__(self, config: VllmConfig) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def with_masks(theirs: Function, runner: GPUModelRunner, *args: Any, **more: Any) -> Any:
    """The step's output, with its masks: empty ones for what vLLM's own sampler has drawn."""
    follower = BatchFollower.newest
    if follower is None or not follower.fields["return_sampling_mask"]:
        return theirs(runner, *args, **more)
    follower.drawn = ([], None)
    output = theirs(runner, *args, **more)  # at once: no vLLM schedules asynchronously on a CPU
    if isinstance(output, outputs.ModelRunnerOutput) and output.req_ids:  # vLLM shares one without requests
        found = (
            call_or_none("sampling masks", partial(masks_of, output, *drawn)) for drawn in (follower.drawn, ([], None))
        )
        output.sampling_masks = next(filter(None, found), None)
    return output


def masks_of(output: outputs.ModelRunnerOutput, served: list[int], sampled: Sampled | None) -> SamplingMaskLists:
    """The masks of a step, as vLLM has them. served: the rows of the batch that were drawn; sampled: so."""
    token_ids, rows = np.empty(0, dtype=np.int32), len(output.req_ids)
    sizes = np.zeros((rows, max(map(len, output.sampled_token_ids), default=0)), dtype=np.int64)
    if sampled is not None and sampled.sampling_mask is not None:
        token_ids, offsets = (part.numpy() for part in sampled.sampling_mask)
        sizes = np.zeros((rows, sampled.token_ids.shape[1]), dtype=np.int64)
        sizes[served] = np.diff(offsets).reshape(len(served), -1)
    begins = [row * sizes.shape[1] for row in range(rows + 1)]
    return outputs.SamplingMaskLists(token_ids, np.concatenate([[0], sizes.ravel().cumsum()]), begins)


OURS: dict[str, Function] = {
    "vllm.config.VllmConfig._verify_sampling_replay_config": check_replay_config,
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner.sample_tokens": with_masks,
}
