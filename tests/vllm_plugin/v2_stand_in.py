"""A stand-in for vLLM's V2 sampler, which shows what it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from crowd import CONFIG, ROWS, VOCAB
from vllm import SamplingParams


def make_shared(dtype: torch.dtype) -> Any:
    """A number of each row, in vLLM's form: on the host and on the device."""
    numbers = torch.zeros(ROWS, dtype=dtype)
    return SimpleNamespace(gpu=numbers, np=numbers.numpy())


class V2Sampler:
    """vLLM's, as far as tailrace looks: `told` is what it knows of each request."""

    def __init__(self) -> None:
        self.needs_logits_processing, self.told, self.draws = np.zeros(ROWS, dtype=bool), {}, 0
        names = [str(index) for index in range(ROWS)]
        self.req_states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=torch.zeros(ROWS, 64, dtype=torch.int32)),
            **{name: make_shared(torch.int32) for name in ("prompt_len", "prefill_len", "total_len")},
            index_to_req_id=dict(enumerate(names)),
            req_id_to_index={name: index for index, name in enumerate(names)},
        )
        strengths = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        self.penalties_state = SimpleNamespace(
            **{name: make_shared(torch.float32) for name in strengths}, apply_staged_writes=lambda: None
        )
        self.sampling_states = SimpleNamespace(add_request=self.tell, apply_staged_writes=lambda: None)

    def tell(self, index: int, params: SamplingParams) -> bool:
        self.told[index] = params
        return params.temperature not in (0.0, 1.0)

    def add_request(self, index: int, params: SamplingParams) -> None:
        self.needs_logits_processing[index] = self.tell(index, params)

    def apply_sampling_params(self, logits: torch.Tensor, *place: Any, skip_top_k_top_p: bool) -> torch.Tensor:
        return logits

    def sample(self, logits: torch.Tensor, *place: Any, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:
        self.draws += 1
        return torch.tensor([self.told[int(index)].top_k for index in place[2]]), logits


# the arguments of vLLM's V2 sampler
V2_GIVEN = {"vllm_config": CONFIG, "max_num_reqs": ROWS, "vocab_size": VOCAB, "num_speculative_tokens": 1}
