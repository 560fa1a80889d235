"""The batches of the trial passes that are made while a model loads."""

from __future__ import annotations

from dataclasses import replace

import torch

from tailrace.runners.base import Batch
from tailrace.runners.flat_batch import FlatTokens

TRIAL_TOKENS = 20


def trial_ids(vocab_size: int, number: int = 0) -> torch.Tensor:
    """A fixed prompt of TRIAL_TOKENS different ids; others with other numbers."""
    return (torch.arange(TRIAL_TOKENS) * 7919 + 11 + 101 * number) % vocab_size


def trial_batch(vocab_size: int, block_size: int, adapted: tuple[tuple[int, torch.Tensor], ...] = ()) -> Batch:
    """The trial prompt as one sequence in the cache's first blocks, with the logits of all its tokens."""
    tokens = torch.arange(TRIAL_TOKENS)
    blocks = -(-TRIAL_TOKENS // block_size)
    return Batch(
        token_ids=trial_ids(vocab_size),
        positions=tokens,
        slot_mapping=tokens,
        query_start=torch.tensor([0, TRIAL_TOKENS], dtype=torch.int32),
        kv_len=torch.tensor([TRIAL_TOKENS], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        wanted=tokens,
        adapted=adapted,
    )


def decode_trial(vocab_size: int, block_size: int, sequences: int, at: int = -1) -> Batch:
    """The trial prompt's last token again, or another one, in `sequences` equal sequences."""
    last = torch.full((sequences,), TRIAL_TOKENS + at)
    blocks = torch.arange(-(-TRIAL_TOKENS // block_size), dtype=torch.int32)
    return Batch(
        token_ids=trial_ids(vocab_size)[last],
        positions=last,
        slot_mapping=last,
        query_start=torch.arange(sequences + 1, dtype=torch.int32),
        kv_len=torch.full((sequences,), TRIAL_TOKENS + at + 1, dtype=torch.int32),
        block_tables=blocks.repeat(sequences, 1),
        wanted=torch.arange(sequences),
    )


def trial_steps(vocab_size: int, block_size: int, far: int, number: int = 0) -> tuple[torch.Tensor, list[Batch]]:
    """Return two sequences of TRIAL_TOKENS tokens, ids [2, T], and the batches of three passes over them.

    1. The whole first sequence beside a chunk of the second.
    2. The rest of the second sequence.
    3. The last token of both.

    The second sequence's positions begin at `far`. All logits are wanted.
    """
    prompt = trial_ids(vocab_size, number)
    ids = torch.stack([prompt, prompt.flip(0)])
    blocks = -(-TRIAL_TOKENS // block_size)
    tables = torch.arange(2 * blocks, dtype=torch.int32).view(2, blocks)
    batches = []
    for spans in (((0, 0, 20), (1, 0, 12)), ((1, 12, 20),), ((1, 19, 20), (0, 19, 20))):
        flat = FlatTokens()
        for sequence, first, end in spans:
            flat.add(ids[sequence, first:end].tolist(), end)
        flat.wanted = list(range(len(flat.token_ids)))
        owners = [span[0] for span in spans]
        batch = flat.make_batch(tables[owners].numpy(), block_size, slots=owners)
        moved = torch.cat([torch.full((end - first,), far * sequence) for sequence, first, end in spans])
        batches.append(replace(batch, positions=batch.positions + moved))
    return ids, batches
