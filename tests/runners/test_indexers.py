"""Sparse attention with an indexer: its keys are in our memory, and a token's selection is its own."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import transformers

from architectures.judge import between_neighbours
from engine.harness import Harness
from runners import tiny_models
from runners.tiny_models import MODELS, save
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.runners import attention, indexers, load_runner
from tailrace.runners.transformers import TransformersRunner

TEXTS = [[(7 * i * i + 3) % tiny_models.VOCAB for i in range(40)], [(5 * i + 1) % tiny_models.VOCAB for i in range(33)]]


def load(folder) -> TransformersRunner:
    runner = load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=16)
    assert isinstance(runner, TransformersRunner)
    return runner


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return load(save("deepseek-v3.2", tmp_path_factory.mktemp("sparse")))


@pytest.fixture(scope="module")
def many_ties(tmp_path_factory):
    """With one head, about half of an indexer's scores are exactly 0."""
    before = MODELS["deepseek-v3.2"]
    MODELS["deepseek-v3.2"] = lambda: transformers.DeepseekV32Config(**(before().to_dict() | {"index_n_heads": 1}))
    try:
        return load(save("deepseek-v3.2", tmp_path_factory.mktemp("ties")))
    finally:
        MODELS["deepseek-v3.2"] = before


def test_a_token_alone_and_beside_others_has_the_same_bits(runner, many_ties):
    assert between_neighbours(runner, TEXTS) == 0
    assert between_neighbours(many_ties, TEXTS) == 0


def test_ties_that_torch_breaks_would_be_seen(many_ties, monkeypatch):
    monkeypatch.setattr(indexers, "EarliestOfTies", nullcontext)
    assert between_neighbours(many_ties, TEXTS) > 0


def test_the_earliest_of_equal_numbers_is_taken():
    numbers = torch.tensor([[0.0, 2.0, -0.0, 2.0, 0.0, -1.0]])
    assert numbers.topk(1).indices.shape == (1, 1)
    with indexers.EarliestOfTies():
        assert numbers.topk(4, dim=-1).indices.tolist() == [[1, 3, 0, 2]]
        assert torch.topk(numbers, 2, largest=False).indices.tolist() == [[5, 0]]
    distinct = torch.randperm(100).float()
    with indexers.EarliestOfTies():
        ours = distinct.topk(7)
    assert torch.equal(ours.indices, distinct.topk(7).indices)
    assert torch.equal(ours.values, distinct.topk(7).values)


def test_the_keys_of_indexers_are_counted(runner):
    paged = runner.paged
    assert len(paged.indexers) == len(paged.attention) == 4
    keys = sum(each.dim * 4 for each in paged.indexers)
    assert keys == 4 * 96 * 4
    values = sum(layer.position_bytes(4) for layer in paged.attention)
    assert runner.block_bytes == (values + keys) * 16


@pytest.mark.few(1)
@pytest.mark.parametrize("copied", [True, False], ids=["copied", "planted: keys of indexers are not"])
def test_forks_take_the_keys_along(runner, monkeypatch, copied):
    """Four forks share the prompt's whole blocks; each gets a copy of the last one."""
    told = []
    for n in (1, 4):
        harness = Harness(runner, num_blocks=64)
        if n > 1 and not copied:
            filled = [keys.fill_(50.0) for keys in runner.paged.layers.index_keys]
            monkeypatch.setattr(runner.paged.layers, "index_keys", NotCopied(filled))
        harness.submit("a", TEXTS[0], max_tokens=20, n=n, ignore_eos=True)
        stories = harness.run()
        told += [stories["a", 0, i].tokens for i in range(n)]
    assert all(tokens == told[0] for tokens in told) is copied


class NotCopied(list[torch.Tensor]):
    """Memories that nobody can go through one by one, as copy_blocks does."""

    def __iter__(self):
        return iter(())


def test_a_selection_of_blocks_is_one_of_positions():
    layer = attention.AttentionLayer(attention.AttentionState(), 0, selected_block=4)
    blocks = torch.tensor([[[[0, 2, -1], [1, -1, -1]]]])  # [1, one KV head, 2 tokens, 3]
    bits = attention.selection_of(layer, {"block_indices": blocks}, 10)
    assert bits is not None
    assert bits[:, 0, 0].tolist() == [0b1100001111, 0b11110000]
    places = torch.tensor([[[0, 9, -1], [3, 3, 1]]])
    bits = attention.selection_of(layer, {"indices": places}, 10)
    assert bits is not None
    assert bits[:, 0, 0].tolist() == [0b1000000001, 0b1010]
    assert attention.selection_of(layer, {"indices": None}, 10) is None


def test_an_indexer_without_a_cache_is_refused():
    class Odd(torch.nn.Module):
        def forward(self, hidden_states, kept):
            return kept.update_indexer(hidden_states)

    with pytest.raises(ModelLoadError, match="Odd is an indexer that takes no cache, which is not supported"):
        indexers.attach_indexers(torch.nn.Sequential(Odd()), attention.AttentionState())
