"""A crowd's steps with drafts, and without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from crowd import CONFIG, CPU, VOCAB, Crowd
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata


def draw_tokens(crowd: Crowd, logits: torch.Tensor) -> list[int]:
    """Return a token for each request, without drafts."""
    return Sampler()(logits, crowd.metadata).sampled_token_ids[:, 0].tolist()


def verify_tokens(
    crowd: Crowd, drafts: list[list[int]], logits: torch.Tensor, probs: torch.Tensor | None = None
) -> list[list[int]]:
    """Return the tokens of each request that stand."""
    metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
    out = RejectionSampler(Sampler())(metadata, probs, logits, crowd.metadata)
    return RejectionSampler.parse_output(out.sampled_token_ids, VOCAB)[0]


def make_drafting_config(method: str) -> Any:
    """Return a configuration with drafts that this method verifies."""
    return SimpleNamespace(**{**vars(CONFIG), "speculative_config": SimpleNamespace(rejection_sample_method=method)})
