"""Compare transformers' `generate` with its own sampling and with tailrace's: processor time per step, in turns.

`python -m bench.transformers_sampler [--model FOLDER] [--rows 8] [--tokens 30] [--rounds 5]`. One thread. Without a
model: a random one of one layer and V = 49,152, so that what is left is mostly sampling.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from bench.lib.harness import machine, table, write_json
from tailrace import kernels
from tailrace.integrations.transformers import TailraceLogitsProcessor, TailraceSampling
from tailrace.params import SamplingParams

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-p": {"top_p": 0.9},
    "top-k + top-p": {"top_k": 50, "top_p": 0.9},
    "top-p + repetition penalty": {"top_p": 0.9, "repetition_penalty": 1.1},
    "min-p + no repeated 3-gram": {"min_p": 0.05, "no_repeat_ngram_size": 3},
}


def random_model(vocab: int) -> Any:
    """One narrow layer."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        initializer_range=0.5,
        pad_token_id=0,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def measure(model: Any, fields: dict[str, Any], rows: int, tokens: int, rounds: int) -> list[float]:
    """Milliseconds of processor time per step: transformers, TailraceSampling, TailraceLogitsProcessor."""
    greedy = fields.get("temperature") == 0.0
    theirs = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0, **fields}
    params, batch = SamplingParams(**fields), torch.arange(10, 10 + 20 * rows).view(rows, 20)
    ways = (
        theirs,
        {"custom_generate": TailraceSampling(params)},
        {"logits_processor": [TailraceLogitsProcessor(params)]},
    )
    took: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for times, way in zip(took, ways, strict=True):
            begun = time.process_time()
            model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=tokens, pad_token_id=0, **way)
            times.append((time.process_time() - begun) / tokens * 1e3)
    return [statistics.median(times) for times in took]


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.transformers_sampler", description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results here too")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = (
        random_model(49_152)
        if asked.model is None
        else AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32)
    )
    model.generation_config.eos_token_id = None
    lines: list[dict[str, Any]] = []
    for name, fields in KINDS.items():
        theirs, ours, processor = measure(model, fields, asked.rows, asked.tokens, asked.rounds)
        line = {"case": name, "transformers, ms": theirs, "custom_generate": ours, "processor": processor}
        lines.append(line | {"ratio ×": theirs / ours})
    print(f"{asked.rows} rows, {asked.tokens} tokens, one thread; processor time per step, medians of {asked.rounds}")
    print(table(lines))
    if asked.json:
        write_json(asked.json, {"machine": machine(), "results": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
