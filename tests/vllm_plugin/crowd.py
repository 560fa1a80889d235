"""A batch of vLLM's, driven as its runner drives it; tailrace is in place of its sampler."""

from __future__ import annotations

import os
import random
from inspect import signature
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported (test_gpu_path.py)

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from tailrace.integrations import vllm as plugin
from tailrace.integrations.vllm.requests import BatchFollower

plugin.register()

VOCAB, ROWS, CPU = 300, 8, torch.device("cpu")
THEIRS = Sampler.forward.theirs  # type: ignore[attr-defined]
CONFIG: Any = SimpleNamespace(
    scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
    model_config=SimpleNamespace(
        logprobs_mode="raw_logprobs", seed=0, runner_type="generate", get_vocab_size=lambda: VOCAB
    ),
    parallel_config=SimpleNamespace(data_parallel_rank=0),
    instance_id="test",
)


def processors(config: Any = CONFIG) -> LogitsProcessors:
    """vLLM's, and the follower of the batch."""
    return LogitsProcessors([kind(config, CPU, False) for kind in (*BUILTIN_LOGITS_PROCESSORS, BatchFollower)])


class Crowd:
    """Requests that join, leave and change places."""

    def __init__(self, seed: int, config: Any = CONFIG) -> None:
        self.random, self.count, self.live = random.Random(seed), 0, {}
        self.noise = torch.Generator().manual_seed(seed)
        older = {"kernel_block_sizes": [16]} if "kernel_block_sizes" in signature(InputBatch).parameters else {}
        self.batch = InputBatch(
            **older,
            max_num_reqs=ROWS,
            max_model_len=512,
            max_num_batched_tokens=512,
            device=CPU,
            vocab_size=VOCAB,
            block_sizes=[16],
            max_num_blocks_per_req=[32],
            logitsprocs=processors(config),
        )

    def add(self, params: SamplingParams, prompt: list[int] | None = None, name: str = "") -> str:
        """A new request. Returns its name."""
        prompt = prompt or [self.random.randrange(VOCAB) for _ in range(self.random.randint(1, 12))]
        state = CachedRequestState(
            req_id=name or f"r{self.count}",
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=params,
            generator=None,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=[],
        )
        self.count += 1
        self.resume(state)
        return state.req_id

    def resume(self, state: CachedRequestState) -> None:
        self.live[state.req_id] = state
        self.batch.add_request(state)

    def remove(self, name: str) -> CachedRequestState:
        self.batch.remove_request(name)
        return self.live.pop(name)

    def settle(self) -> None:
        """As the runner does between removals, additions and the draw."""
        self.batch.condense()
        if len(self.live) > 1 and self.random.random() < 0.4:
            first, second = self.random.sample(range(len(self.live)), 2)
            self.batch.swap_states(first, second)
        self.batch.refresh_metadata()

    @property
    def metadata(self) -> SamplingMetadata:
        return self.batch.sampling_metadata

    def logits(self) -> torch.Tensor:
        return torch.randn(len(self.live), VOCAB, generator=self.noise) * 3

    def keep(self, tokens: dict[str, int]) -> None:
        """The tokens become output, but for a request now and then, whose token vLLM discards."""
        for name, token in tokens.items():
            if self.random.random() < 0.95:
                self.live[name].output_token_ids.append(token)

    def order(self) -> list[str]:
        return list(self.batch.req_ids[: len(self.live)])
