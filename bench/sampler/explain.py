"""Measure what an explanation of one token costs, against the walk of the reference pipeline that it contains, and
against the kernels' draw with 5 logprobs.

One thread. Rows are of a real row's shape; the three take turns, so that noise affects them alike. Processor time is
what counts: an engine's thread is held up by that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from bench.lib.harness import machine, table, write_json
from bench.lib.rows import distinct
from tailrace import kernels
from tailrace.explain.record import ExplainOptions
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots
from tailrace.sampling.explain import explain_row
from tailrace.sampling.reference import compute_distribution

VOCABULARIES = (49_152, 128_256)
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "penalties, top-k, top-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.1},
}
GOAL = 5.0  # times the walk
TOPS = (3, 10, 100)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.explain", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="per line (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return parser.parse_args(argv)


def runs(vocab: int, fields: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """What takes turns."""
    slots, reported = Slots(1, vocab), Slots(1, vocab)
    slots.add(0, SamplingParams(**fields), key=3, prompt=range(200))
    reported.add(0, SamplingParams(**fields, logprobs=5), key=3, prompt=range(200))
    logits = distinct("peaked", vocab)[:1]
    row, rows, sampler = logits[0], Rows.plain([0], [0], [200]), Sampler(reported)
    explained = {f"top {top}": lambda top=top: explain_row(row, slots[0], 200, ExplainOptions(top)) for top in TOPS}
    return {
        "draw": lambda: sampler(logits, rows),
        "walk": lambda: compute_distribution(row, slots[0], 200),
        **explained,
    }


def measure(each: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median ms of processor time of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in each}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["draw"]) < 5:
        for name, run in each.items():
            begun = time.thread_time()
            run()
            times[name].append(1e3 * (time.thread_time() - begun))
    return {name: statistics.median(found) for name, found in times.items()}


def main(argv: list[str] | None = None) -> int:
    """Print a line for each vocabulary and mix of parameters."""
    args = arguments(argv)
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    for vocab in VOCABULARIES:
        for name, fields in PARAMS.items():
            each = runs(vocab, fields)
            size = len(msgspec.json.encode(each["top 10"]()))
            found = measure(each, args.seconds)
            lines.append(
                {
                    "parameters": name,
                    "vocabulary": vocab,
                    "draw ms": found["draw"],
                    "walk ms": found["walk"],
                    **{f"top {top} ms": found[f"top {top}"] for top in TOPS},
                    "× walk": found["top 10"] / found["walk"],
                    "goal": GOAL,
                    "bytes": size,
                }
            )
    print(table(lines))
    if args.json:
        write_json(args.json, {**machine(), "explain": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
