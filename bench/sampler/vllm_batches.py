"""Batches for the benchmarks of vLLM's sampler: all requests of a batch ask the same.

They need an environment with vLLM, and tests/vllm_plugin on PYTHONPATH.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import crowd  # type: ignore[import-not-found]  # tests/vllm_plugin
import torch
from vllm import SamplingParams  # type: ignore[import-not-found]

from tailrace import kernels


def make_batch(fields: dict[str, Any], rows: int, vocab: int) -> Any:
    """Return a crowd.Crowd of `rows` requests with prompts of 50 tokens. If `fields` has a seed, the seeds differ."""
    crowd.ROWS, crowd.VOCAB = rows, vocab
    crowd.CONFIG.scheduler_config.max_num_seqs = rows
    batch = crowd.Crowd(0)
    for i in range(rows):
        more = {"seed": i} if "seed" in fields else {}
        batch.add(SamplingParams(**(fields | more)), prompt=list(range(50)))
    return batch


def read_arguments(prog: str, description: str | None, steps: int, argv: list[str] | None) -> argparse.Namespace:
    """Return vocab, rows, steps and json of the command line, and set one thread for torch and for the kernels."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--json", type=Path, help="write the results here too")
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    return parser.parse_args(argv)
