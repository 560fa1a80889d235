"""Rows that transformers' own `generate` makes with tailrace, on tiny prompts."""

from __future__ import annotations

from typing import Any

import torch

V, EOS, PAD = 301, 2, 0
PROMPTS = [[5, 9, 9, 40], [7, 8, 9, 10, 11, 12, 13], [200]]
LENGTHS = [len(prompt) for prompt in PROMPTS]
WIDTH = max(LENGTHS)
MANY = 12


def pad_prompts(prompts: list[list[int]] = PROMPTS) -> dict[str, torch.Tensor]:
    """Return the prompts as `generate` takes them, padded at the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def read_outputs(sequences: torch.Tensor, width: int = WIDTH) -> list[list[int]]:
    """Return the new ids of each row, without what follows its end."""
    found = []
    for row in sequences[:, width:].tolist():
        found.append(row[: row.index(EOS) + 1] if EOS in row else row)
    return found


def generate_rows(model: Any, sampling: Any, prompts: list[list[int]] = PROMPTS, **more: Any) -> list[list[int]]:
    """Return the new ids of each row."""
    out = model.generate(**pad_prompts(prompts), custom_generate=sampling, max_new_tokens=MANY, **more)
    return read_outputs(out, max(map(len, prompts)))
