"""The whole engine on a GPU: drawn ids that never leave it, graphs, copies on a stream of their own. Left out where
there is none."""

from __future__ import annotations

import pytest
import torch

from tailrace.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tailrace.engine.process import build_engine
from tailrace.params import SamplingParams
from tailrace.wire.messages import Submit, Tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ASKED = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"presence_penalty": 0.7, "logprobs": 2},
    {"top_k": 20, "n": 2},
    {"bad_words": ((5, 6),), "min_p": 0.05},
    {"guidance_scale": 1.5},
)


def said(folder: str, overlap: str, graphs: bool) -> dict[tuple[str, int], list[int]]:
    model = ModelConfig(model=folder, device="cuda", dtype="float32", cuda_graphs=graphs)
    scheduler = SchedulerConfig(max_num_seqs=16, overlap=overlap)
    engine = build_engine(EngineConfig(model=model, cache=CacheConfig(num_blocks=512), scheduler=scheduler))
    for i, fields in enumerate(ASKED):
        params = SamplingParams(**fields, seed=i, max_tokens=24, ignore_eos=True)
        engine.submit(Submit(str(i), 0, list(range(100 + i, 130 + 3 * i)), params))
    tokens: dict[tuple[str, int], list[int]] = {}
    while engine.has_work:
        for message in engine.step().get(b"", []):
            if isinstance(message, Tokens):
                tokens.setdefault((message.id, message.index), []).extend(message.token_ids)
    if engine.grammars is not None:
        engine.grammars.close()
    return tokens


def test_overlap_and_graphs_change_nothing(model_folder):
    expected = said(str(model_folder), "off", False)
    assert all(len(tokens) == 24 for tokens in expected.values())
    for overlap, graphs in (("on", False), ("off", True), ("on", True)):
        assert said(str(model_folder), overlap, graphs) == expected, (overlap, graphs)
