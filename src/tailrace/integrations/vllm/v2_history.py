"""Fields that read all tokens of a request in vLLM's V2 runner, whose tokens stay on the device: no-repeat n-grams.

The slots have these fields at their neutral values. The bans are made of vLLM's own buffers, and nothing waits for the
device.
"""

from __future__ import annotations

from typing import Any

import torch

# field → vLLM's buffer with the length of the tokens whose n-grams count
FIELDS = {"no_repeat_ngram_size": "total_len", "encoder_no_repeat_ngram_size": "prompt_len"}
NEUTRAL = dict.fromkeys(FIELDS, 0)


def find_followers(
    tokens: torch.Tensor, lengths: torch.Tensor, ends: torch.Tensor, sizes: torch.Tensor, most: int
) -> torch.Tensor:
    """Return bool [R, L]: the places whose token would complete an n-gram again.

    Args:
        tokens: int64 [R, L]. lengths: int64 [R], of the tokens so far. ends: int64 [R], the n-grams end before them.
        sizes: int64 [R], 0 for none. most: the largest size.
    """
    places, wanted = torch.arange(tokens.shape[1], device=tokens.device), sizes[:, None] - 1
    fits = (places < ends[:, None]) & (places >= wanted) & (wanted >= 0) & (lengths[:, None] >= wanted)
    for back in range(1, min(most, tokens.shape[1])):
        last = tokens.gather(1, (lengths - back).clamp(min=0)[:, None])
        fits &= (tokens.roll(back, 1) == last) | (wanted < back)
    return fits


def ban_repeats(
    logits: torch.Tensor, places: torch.Tensor, states: Any, asked: dict[int, dict[str, int]], longest: int
) -> torch.Tensor:
    """Return the logits with −inf for the tokens that these rows may not repeat.

    Args:
        places: int64 [R], the rows. states: vLLM's states of requests. asked: the FIELDS of each row's request, by its
            index there. longest: an upper bound of the lengths of their tokens.
    """
    index = torch.tensor(list(asked)).to(logits.device, non_blocking=True)
    tokens = states.all_token_ids.gpu[:, :longest].index_select(0, index).long()  # perhaps from the host's memory
    lengths, vocab = states.total_len.gpu.index_select(0, index).long(), logits.shape[1]
    lengths = lengths.clamp(max=tokens.shape[1])  # a prompt that is computed in parts has more, and draws no token yet
    banned = torch.zeros((len(asked), vocab + 1), dtype=torch.bool, device=logits.device)
    for name, buffer in FIELDS.items():
        sizes = [fields[name] for fields in asked.values()]
        if any(sizes):
            ends = getattr(states, buffer).gpu.index_select(0, index).long()
            size = torch.tensor(sizes).to(logits.device, non_blocking=True)
            fits = find_followers(tokens, lengths, ends, size, max(sizes)) & (tokens < vocab)
            banned.scatter_(1, tokens.where(fits, vocab), True)
    rows = logits.index_select(0, places).masked_fill(banned[:, :vocab], -torch.inf)
    return logits.index_copy(0, places, rows)
