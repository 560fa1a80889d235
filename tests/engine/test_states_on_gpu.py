"""The whole engine with models that keep states, on a GPU: graphs, overlap, prefix reuse and drafts that are rejected
change no token. Left out where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.harness import Harness
from runners.tiny_models import VOCAB, save
from tailrace.config import ModelConfig
from tailrace.drafting.ngram import NGram
from tailrace.runners import load_runner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

COUNT = 24
PROMPTS = [[5, 9, 33, 7, 100, 2] * 5, [(7 * i * i + 3) % VOCAB for i in range(100)], [77, 3]]


def generate(runner: Any, **options: Any) -> list[list[int]]:
    """Return the greedy tokens of the prompts, asked for twice: the second time their prefixes may be reused."""
    harness = Harness(runner, **({"num_blocks": 64, "max_num_batched_tokens": 32} | options))
    for i in range(2 * len(PROMPTS)):
        harness.submit(str(i), PROMPTS[i % len(PROMPTS)], max_tokens=COUNT, ignore_eos=True)
        if options.get("prefix_reuse"):
            harness.run()
    stories = harness.run()
    return [stories[str(i), 0, 0].tokens for i in range(2 * len(PROMPTS))]


@pytest.mark.parametrize("name", ["qwen3.5", "lfm2", "granite 4", "mamba", "minimax", "kimi linear"])
def test_no_schedule_changes_a_token(name, tmp_path):
    folder, found = save(name, tmp_path), []
    for graphs in (False, True):
        config = ModelConfig(dtype="float32", device="cuda", cuda_graphs=graphs)
        runner = load_runner(config, folder, block_size=16, max_num_seqs=8)
        for options in ({"prefix_reuse": False}, {"prefix_reuse": True}, {"drafter": lambda _: NGram()}):
            found.append(generate(runner, **options))
    assert all(tokens == found[0] for tokens in found)
