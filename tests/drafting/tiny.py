"""Small random models for drafters, and what a model alone says of a sequence."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tailrace.config import ModelConfig
from tailrace.params import SamplingParams
from tailrace.runners.flat_batch import block_table, lay_out
from tailrace.runners.load_transformers import load_transformers
from tailrace.runners.transformers import TransformersRunner
from tailrace.sampling import Rows, Sampler, Slots

VOCAB = 97
SIZE = 16


def llama(folder: Path, *, layers: int = 2, seed: int = 1, vocab: int = VOCAB) -> TransformersRunner:
    """A random model, saved, and a runner over it, not allocated."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    return load(folder)


def load(folder: Path) -> TransformersRunner:
    """A runner over the folder's model, not allocated."""
    return load_transformers(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=SIZE)


def sampler_for(*fields: dict, prompts: list[list[int]], vocab: int = VOCAB) -> Sampler:
    """Slots 0, 1, … each with its own parameters and prompt."""
    slots = Slots(len(fields), vocab)
    for slot, (params, prompt) in enumerate(zip(fields, prompts, strict=True)):
        slots.add(slot, SamplingParams(**params), key=100 + slot, prompt=prompt)
    return Sampler(slots)


def said(runner, sampler: Sampler, slot: int, tokens: list[int], count: int) -> list[int]:
    """The next `count` tokens of plain sampling, the whole sequence computed anew for each, and not committed: no slot
    changes."""
    tokens, start = list(tokens), len(tokens)
    while len(tokens) < start + count:
        blocks = block_table([range(-(-len(tokens) // SIZE))])
        logits = runner.forward(lay_out([tokens], [0], blocks, SIZE))
        tokens += sampler(logits, Rows.plain([slot], [0], [len(tokens)])).token_ids[0].tolist()
    return tokens[start:]
