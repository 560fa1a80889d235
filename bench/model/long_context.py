"""Measure prompts and decode steps of one stream by position, against transformers and llama.cpp, in turns in one run.

    python -m bench.long_context [MODEL] [--positions 1000 8000 32000] [--llama .venv-llama/bin/python]

For each position: a prompt of so many tokens, then decode steps behind it. tailrace runs with its cache in bfloat16 and
in int8, and reads prompts in passes of --chunk tokens as its engine does. transformers reads them whole, with SDPA and
DynamicCache. llama.cpp needs --llama, a Python that has llama-cpp-python, and a GGUF file as the model. Its weights
stay as the file has them; the others have bfloat16.

Without MODEL it is the default model's file. Beyond the context of a model its text is nonsense, but as fast.
bench.random_model writes models with other shapes. --processor-time counts the time of all threads instead of the
clock's, for a machine that others use. Then one thread is best, as waiting threads count too.

Ratios above 1: tailrace is faster. Without --processor-time there are shares of what the same threads reach in the same
run: decode steps, of the read bandwidth (weights and cache); prompts, of the rate of bfloat16 multiplications.
"""

from __future__ import annotations

import argparse
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.lib.harness import Worker, cores, machine, table, write_json
from bench.model.gguf_ours import READ_BYTES
from bench.model.peak_rates import peak_rates
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.models.default import default_gguf_path

OURS = {"bfloat16": "auto", "int8": "int8"}  # by the cache


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Flags."""
    parser = argparse.ArgumentParser(prog="python -m bench.long_context", description=__doc__)
    parser.add_argument("model", nargs="?", help="a folder or GGUF file; none: the default model's file")
    parser.add_argument("--positions", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--steps", type=int, default=16, help="decode steps at each position")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a pass of ours")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--llama", help="a Python with llama-cpp-python")
    parser.add_argument("--processor-time", action="store_true", help="count processor time, not the clock's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if min(args.positions) < 1 or min(args.steps, args.rounds, args.chunk) < 1:
        parser.error("--positions, --steps, --rounds and --chunk must be at least 1")
    if args.llama and args.model and not args.model.endswith(".gguf"):
        parser.error("--llama needs a GGUF file as the model")
    return args


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    if args.model is None:
        resolve(ModelConfig())
        args.model = str(default_gguf_path(Path(ModelConfig().cache_dir)))
    with ExitStack() as stack:
        workers, about = start_workers(stack, args)
        times, bandwidth = measure_positions(workers, about, args)
    rows = [row for position in args.positions for row in position_rows(position, times[position], args.steps)]
    if not args.processor_time:
        rows += share_rows(times, about, bandwidth, peak_rates(args.threads)["bf16"], args.steps)
    record = {"machine": machine(), "model": args.model, "threads": args.threads, "rows": rows}
    clock = "processor time" if args.processor_time else "wall time"
    print(f"{record['machine']['cpu']}, {args.threads} threads, {clock}, {bandwidth / 1e9:.1f} GB/s\n\n{table(rows)}")
    if args.json:
        write_json(args.json, record)
    return 0


def start_workers(stack: ExitStack, args: argparse.Namespace) -> tuple[dict[str, Worker], dict[str, dict[str, Any]]]:
    """Start a worker per side. Return them, and what each says of its model."""
    first = {
        "file": args.model,
        "threads": args.threads,
        "window": max(args.positions) + args.steps + 1,
        "streams": 1,
        "batch": args.chunk,
        "processor": args.processor_time,
    }
    module = "bench.model.long_context_sides"
    workers = {name: stack.enter_context(Worker(module, threads=args.threads)) for name in (*OURS, "transformers")}
    if args.llama:
        workers["llama.cpp"] = stack.enter_context(Worker("bench.model.gguf_llama", python=args.llama))
    about = {name: worker.ask({**first, "kv_cache_dtype": OURS.get(name)}) for name, worker in workers.items()}
    return workers, about


def measure_positions(
    workers: dict[str, Worker], about: dict[str, dict[str, Any]], args: argparse.Namespace
) -> tuple[dict[int, dict[str, list[float]]], float]:
    """Return, by position and side, the median seconds of a prompt and of the decode steps; and the bandwidth."""
    chance, vocab = random.Random(0), min(one["vocab"] for one in about.values())
    ids = [chance.randrange(100, vocab) for _ in range(max(args.positions))]
    found: dict[int, dict[str, list[list[float]]]] = {p: {name: [] for name in workers} for p in args.positions}
    bandwidths = []
    for number in range(args.rounds):
        bandwidths.append(READ_BYTES / workers["bfloat16"].ask({"do": "read"}))
        for position in args.positions:
            print(f"round {number + 1} of {args.rounds}, position {position}", file=sys.stderr, flush=True)
            question = {"do": "long", "ids": ids[:position], "steps": args.steps}
            for name, worker in workers.items():
                found[position][name].append(worker.ask(dict(question)))
    times = {
        position: {name: [median(values) for values in zip(*rounds, strict=True)] for name, rounds in sides.items()}
        for position, sides in found.items()
    }
    return times, median(bandwidths)


def position_rows(position: int, times: dict[str, list[float]], steps: int) -> list[dict[str, Any]]:
    """Return a row of the prompt and one of a decode step: each side's figure, then ratios to the others."""
    rows = []
    for place, what in enumerate(("prompt, tokens/s", "decode step, ms")):
        seconds = {name: found[place] for name, found in times.items()}
        figures = {name: position / s if place == 0 else s / steps * 1e3 for name, s in seconds.items()}
        others = {f"× {name}": s / seconds["bfloat16"] for name, s in seconds.items() if name not in OURS}
        int8 = {"int8 × bfloat16": seconds["bfloat16"] / seconds["int8"]}
        rows.append({"what": f"{what}, {position}", **figures, **others, **int8})
    return rows


def share_rows(
    times: dict[int, dict[str, list[float]]],
    about: dict[str, dict[str, Any]],
    bandwidth: float,
    peak: float,
    steps: int,
) -> list[dict[str, Any]]:
    """Return ours as shares of what the machine reaches: of the bandwidth, and of bfloat16's multiplications."""
    empty = dict.fromkeys(position_rows(1, next(iter(times.values())), steps)[0], "")
    rows = []
    for position, sides in times.items():
        read, multiplied = {}, {}
        for name in OURS:
            (prompt_s, steps_s), its = sides[name], about[name]
            read[name] = (its["bytes"] + position * its["position_bytes"]) * steps / steps_s / bandwidth
            each = its["weights"] + its["position_products"] * position / 2
            multiplied[name] = position * each / prompt_s / peak if peak else float("nan")
        rows.append(empty | {"what": f"share of the multiplications, prompt of {position}"} | multiplied)
        rows.append(empty | {"what": f"share of the bandwidth, step at {position}"} | read)
    return rows


if __name__ == "__main__":
    sys.exit(main())
