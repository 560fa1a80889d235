"""No-repeat n-grams from vLLM's buffers of tokens (v2_history.py), against a plain search."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch

from tailrace.integrations.vllm.v2_history import FIELDS, ban_repeats

ROWS, LONGEST, VOCAB, LETTERS = 6, 24, 5, 4


def search_followers(tokens: list[int], end: int, size: int) -> set[int]:
    """The tokens that would complete an n-gram of the first `end` tokens again."""
    if size == 0 or len(tokens) < size - 1:
        return set()
    last = tokens[len(tokens) - size + 1 :]
    return {tokens[at + size - 1] for at in range(end - size + 1) if tokens[at : at + size - 1] == last}


def test_bans_are_those_of_a_plain_search() -> None:
    """Beyond a request's tokens a buffer has those of earlier requests, and an image's id is no token."""
    drawn, counts = random.Random(3), []
    for _ in range(300):
        buffer = torch.tensor([[drawn.choice([*range(LETTERS), 99]) for _ in range(LONGEST)] for _ in range(ROWS)])
        lengths = [drawn.randint(1, LONGEST) for _ in range(ROWS)]
        prompts = [drawn.randint(1, length) for length in lengths]
        states: Any = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=buffer.int()),
            total_len=SimpleNamespace(gpu=torch.tensor(lengths, dtype=torch.int32)),
            prompt_len=SimpleNamespace(gpu=torch.tensor(prompts, dtype=torch.int32)),
        )
        indices = drawn.sample(range(ROWS), drawn.randint(1, ROWS - 1))
        asked = {index: {name: drawn.choice([0, 1, 2, 3, 4, 30]) for name in FIELDS} for index in indices}
        places = torch.tensor(drawn.sample(range(ROWS), len(indices)))
        logits = torch.randn(ROWS, VOCAB)
        longest = max(lengths[index] for index in indices)
        found = ban_repeats(logits, places, states, asked, longest)
        wanted = logits.clone()
        for place, (index, sizes) in zip(places.tolist(), asked.items(), strict=True):
            tokens = buffer[index, : lengths[index]].tolist()
            ends = dict(zip(FIELDS, (lengths[index], prompts[index]), strict=True))
            banned = set().union(*(search_followers(tokens, ends[name], size) for name, size in sizes.items())) - {99}
            wanted[place, sorted(banned)] = -torch.inf
            counts.append(len(banned))
        assert torch.equal(found, wanted)
    assert {0, 1, 2, 3, 4} <= set(counts)
