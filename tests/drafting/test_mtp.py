"""MTP heads: their logits against the same written down plainly, their caches against a fresh start, and what is
refused."""

from __future__ import annotations

import random

import pytest
import torch

from drafting.heads import VOCAB, Argmax, check_histories, drafted, hidden_states, observe
from drafting.mtp_models import FAMILIES, LAYERS, plain, save_model
from tailrace.config import ModelConfig
from tailrace.drafting.chain import ChainDrafter
from tailrace.drafting.mtp_head import MtpHead
from tailrace.runners import load_runner

SIZE = 16


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found = {}

    def make(name: str):
        if name not in found:
            folder = save_model(name, tmp_path_factory.mktemp(name))
            config = ModelConfig(dtype="float32", threads=1, device="cpu", trust_remote_code=True)
            found[name] = MtpHead.load(folder, load_runner(config, folder, block_size=SIZE))
        return lambda: ChainDrafter(found[name], Argmax(), 24, SIZE)  # type: ignore[arg-type]

    return make


def some(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("cuts", [(), (1,), (16,), (7, 20, 21, 39), tuple(range(1, 44))], ids=len)
@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_logits_are_those_of_the_definition(name, cuts, made):
    """However a prompt is cut into chunks."""
    drafter, tokens = made(name)(), some(45)
    assert drafter.captures == (LAYERS,)
    ends = [*cuts, 44]
    for first, end in zip([0, *cuts], ends, strict=True):
        observe(drafter, (0, tokens, first, end - first))
    (got,) = drafted(drafter, (0, tokens, 4))
    expected = plain(name, tokens, hidden_states(tokens, 1), 4, range(44))
    torch.testing.assert_close(got, expected, atol=3e-4, rtol=3e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FAMILIES)
def test_any_history_leaves_what_a_fresh_start_would(name, seed, made):
    assert check_histories(made(name), 4, seed) > 20
