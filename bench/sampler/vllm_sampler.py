"""Compare vLLM's `Sampler.forward` with tailrace in its place: processor time per step, in turns on the same batches.

Run it by an environment that has vLLM and tailrace (`make test-vllm` makes .venv-vllm):
`PYTHONPATH=tests/vllm_plugin .venv-vllm/bin/python -m bench.vllm_sampler [--vocab 49152] [--rows 32] [--steps 40]`.
One thread. Each row of the table is a batch in which all requests ask the same.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import crowd  # type: ignore[import-not-found]  # tests/vllm_plugin
import torch
from vllm.v1.sample.sampler import Sampler  # type: ignore[import-not-found]

from bench.lib.harness import machine, table, write_json
from bench.sampler.vllm_batches import make_batch, read_arguments

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
    batch = make_batch(fields, rows, vocab)
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


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    asked = read_arguments("python -m bench.vllm_sampler", __doc__, 40, argv)
    lines: list[dict[str, Any]] = []
    for name, fields in KINDS.items():
        theirs, ours = measure(fields, asked.rows, asked.vocab, asked.steps)
        lines.append({"case": name, "vLLM, ms": theirs, "tailrace, ms": ours, "ratio ×": theirs / ours})
    print(
        f"{asked.rows} rows, V = {asked.vocab}, bfloat16, one thread; processor time per step, medians of {asked.steps}"
    )
    print(table(lines))
    if asked.json:
        write_json(asked.json, {"machine": machine(), "results": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
