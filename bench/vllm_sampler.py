"""vLLM's `Sampler.forward` and tailrace in its place, in turns on the same batches: processor time of a step.

Run it by an environment that has vLLM and tailrace (`make test-vllm` makes .venv-vllm):
`PYTHONPATH=tests/vllm_plugin .venv-vllm/bin/python -m bench.vllm_sampler [--vocab 49152] [--rows 32] [--steps 40]`.
One thread. Each row of the table is a batch in which all requests ask the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import crowd  # type: ignore[import-not-found]  # tests/vllm_plugin
import torch
from vllm import SamplingParams  # type: ignore[import-not-found]
from vllm.v1.sample.sampler import Sampler  # type: ignore[import-not-found]

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-p": {"top_p": 0.9},
    "top-k + top-p": {"top_k": 50, "top_p": 0.9},
    "top-k + top-p + penalties": {
        "top_k": 50,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
    },
    "seeds": {"seed": 1},
    "5 logprobs": {"logprobs": 5},
}


def measure(fields: dict[str, Any], rows: int, vocab: int, steps: int) -> tuple[float, float]:
    """Medians of vLLM's processor time per step and of tailrace's, in milliseconds."""
    crowd.ROWS, crowd.VOCAB = rows, vocab
    crowd.CONFIG.scheduler_config.max_num_seqs = rows
    batch = crowd.Crowd(0)
    for i in range(rows):
        more = {"seed": i} if "seed" in fields else {}
        batch.add(SamplingParams(**(fields | more)), prompt=list(range(50)))
    for state in batch.live.values():
        if state.sampling_params.seed is not None:
            state.generator = torch.Generator().manual_seed(state.sampling_params.seed)
            batch.batch.generators[batch.batch.req_id_to_index[state.req_id]] = state.generator
    batch.batch.refresh_metadata()
    sampler, took = Sampler(), ([], [])
    for _ in range(steps):
        logits = batch.logits().to(torch.bfloat16)
        ids: list[int] = []
        for times, forward in zip(took, (crowd.THEIRS, Sampler.forward), strict=True):
            given = logits.clone()
            begun = time.process_time()
            ids = forward(sampler, given, batch.metadata).sampled_token_ids[:, 0].tolist()
            times.append((time.process_time() - begun) * 1e3)
        for state, token in zip(batch.live.values(), ids, strict=True):
            state.output_token_ids.append(token)
    return statistics.median(took[0]), statistics.median(took[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    from tailrace import kernels

    kernels.set_num_threads(1)
    print(
        f"{asked.rows} rows, V = {asked.vocab}, bfloat16, one thread; processor time per step, medians of {asked.steps}"
    )
    print(f"{'':28}{'vLLM, ms':>10}{'tailrace, ms':>14}{'ratio':>8}")
    for name, fields in KINDS.items():
        theirs, ours = measure(fields, asked.rows, asked.vocab, asked.steps)
        print(f"{name:28}{theirs:10.2f}{ours:14.3f}{theirs / ours:7.1f} ×")


if __name__ == "__main__":
    main()
