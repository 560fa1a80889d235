"""Heads on a real target: what its layers put out is what they are given, and drafts that its verification keeps change
nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from drafting import test_block, test_eagle
from drafting.heads import Argmax, save, save_target
from tailrace.config import ModelConfig
from tailrace.drafting.base import DraftRequest, TargetStates
from tailrace.drafting.block import BlockDrafter
from tailrace.drafting.block_head import BlockHead
from tailrace.drafting.chain import ChainDrafter
from tailrace.drafting.eagle_heads import load_head
from tailrace.runners import load_runner
from tailrace.runners.base import Batch

SIZE = 16


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = save_target(tmp_path_factory.mktemp("target"))
    runner = load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=SIZE)
    runner.allocate(16)
    return runner


def batch(tokens: list[int], first: int) -> Batch:
    """One sequence, in blocks 0, 1, …: its positions from `first` on, all wanted."""
    at = torch.arange(first, len(tokens))
    return Batch(
        torch.tensor(tokens[first:]),
        at,
        at,
        torch.tensor([0, len(at)], dtype=torch.int32),
        torch.tensor([len(tokens)], dtype=torch.int32),
        torch.arange(16, dtype=torch.int32)[None],
        torch.arange(len(at)),
    )


def drafters(target, tmp_path):
    folders = [
        save(tmp_path / "first", *test_eagle.first_head()),
        save(tmp_path / "third", *test_eagle.third_head()),
        save(tmp_path / "block", *test_block.dflash()),
    ]
    return [
        ChainDrafter(load_head(folders[0], target), Argmax(), 16, SIZE),
        ChainDrafter(load_head(folders[1], target), Argmax(), 16, SIZE),
        BlockDrafter(BlockHead.load(folders[2], target), Argmax(), 16, SIZE),
    ]


def greedy(target, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(target.forward(batch(tokens, 0))[-1].argmax()))
    return tokens


def test_decoding_with_a_head_gives_what_decoding_without_does(target, tmp_path):
    """Greedy, through the real chain: capture, observe, draft, verify; every third step the target's own future is
    drafted, so that acceptance happens too."""
    prompt = list(range(7, 27))
    expected = greedy(target, prompt, 30)
    for drafter in drafters(target, tmp_path):
        target.capture(drafter.captures)
        tokens, computed, drafted, steps = list(prompt), 0, 0, 0
        while len(tokens) < len(expected):
            (draft,) = drafter.draft([DraftRequest(0, tokens, 4)])
            guesses = expected[len(tokens) : len(tokens) + 3] if steps % 3 == 2 else draft.tokens
            drafted += len(draft.tokens)
            logits = target.forward(batch([*tokens, *guesses], computed))
            drawn = logits[len(tokens) - 1 - computed :].argmax(-1).tolist()
            accepted = next((i for i, (x, y) in enumerate(zip(guesses, drawn, strict=False)) if x != y), len(guesses))
            new = len(tokens) + accepted - computed
            tokens += drawn[: accepted + 1]
            drafter.observe(TargetStates([0], [tokens], [computed], [new], [0], target.hidden))
            computed, steps = computed + new, steps + 1
        target.capture(())
        assert tokens[: len(expected)] == expected
        assert drafted >= 4 * (steps - 1)
        assert steps < 30
        known = drafter.context.known[0]
        assert all(b == a + 1 for a, b in pairwise(known))
        assert known[-1] == len(tokens) - 2
