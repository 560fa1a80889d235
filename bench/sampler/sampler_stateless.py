"""Compare the stateless call with `Sampler`: the same rows, parameters and tokens, in turns.

`python -m bench.sampler_stateless`. Each call gets rows that no cache holds; `Sampler` builds its rows in each step, as
an engine does. The tokens of both are compared.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.lib.harness import machine, table, write_json
from bench.lib.rows import Pool, synthetic
from tailrace import kernels
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots, sample

Run = Callable[[torch.Tensor, int], torch.Tensor]


def fields_of(rows: int) -> dict[str, list[Any]]:
    """Other parameters for each row."""
    return {
        "temperature": [0.6 + 0.01 * (row % 40) for row in range(rows)],
        "top_k": [20 + row % 60 for row in range(rows)],
        "top_p": [0.8 + 0.001 * (row % 150) for row in range(rows)],
    }


def by_slots(rows: int, vocab: int, fields: dict[str, list[Any]]) -> Run:
    slots = Slots(rows, vocab)
    for row in range(rows):
        asked = {name: column[row] for name, column in fields.items()}
        slots.add(row, SamplingParams(**asked), key=row, prompt=[1])
    sampler = Sampler(slots)
    return lambda logits, position: sampler(logits, Rows.plain(range(rows), range(rows), [position] * rows)).token_ids[
        :, 0
    ]


def stateless(rows: int, fields: dict[str, list[Any]]) -> Run:
    given: dict[str, Any] = {name: torch.tensor(column) for name, column in fields.items() if name == "top_k"}
    given |= {name: torch.tensor(column, dtype=torch.float64) for name, column in fields.items() if name != "top_k"}
    seeds = torch.arange(rows)
    return lambda logits, position: sample(logits, seed=seeds, position=position, **given)


def measured(pool: Pool, rows: int, rounds: int) -> dict[str, Any]:
    """Medians and minima of both, µs per call.

    Raises:
        AssertionError: their tokens differ.
    """
    fields, vocab = fields_of(rows), pool.rows.shape[1]
    runs = {"Sampler": by_slots(rows, vocab, fields), "stateless": stateless(rows, fields)}
    for turn in range(3):
        first, second = (run(pool.take(rows, turn), turn) for run in runs.values())
        assert torch.equal(first, second), "the tokens differ"
    times: dict[str, list[float]] = {name: [] for name in runs}
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        for place, (name, run) in enumerate(runs.items()):
            logits = pool.take(rows, 2 * turn + place)
            begin = time.perf_counter()
            run(logits, turn)
            times[name].append((time.perf_counter() - begin) * 1e6)
    gc.enable()
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "rows of": pool.name,
        "rows": rows,
        "Sampler µs": median["Sampler"],
        "stateless µs": median["stateless"],
        "ratio": median["stateless"] / median["Sampler"],
        "ratio of the fastest": min(times["stateless"]) / min(times["Sampler"]),
    }


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampler_stateless", description=__doc__)
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 128_256])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the results here too")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    lines = []
    for vocab in args.vocab:
        pool = synthetic("peaked", vocab, torch.float32)
        lines += [measured(pool, rows, args.rounds) for rows in args.rows]
    print(f"{machine()['cpu']}, one thread; goal: a ratio of at most 1.1")
    print(table(lines))
    if args.json:
        write_json(args.json, {"machine": machine(), "results": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
