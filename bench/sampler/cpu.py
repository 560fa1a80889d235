"""The sampler on the CPU, case by case: µs per row, as multiples of one streaming read of the same row, and against the
samplers of other projects.

Rows are cold: each call gets other rows of a pool far larger than the last-level cache. The floor is a loop that only
reads the row. The baselines take turns with ours. One sorts for top-k and top-p, then draws by an exponential race, as
servers do on the CPU. The other runs transformers' processors, then multinomial. Rows are real logits of the default
model (--model), and synthetic ones: "peaked" (normal with σ 2.5 and 30 strong tokens) and "flat" (standard normal, the
worst case).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from bench.lib.harness import cores, machine, table, write_json
from bench.lib.rows import BOTH, DTYPES, NUCLEUS, Pool, read_once, real, synthetic
from bench.sampler.cases import CASES, DEVICES, FLAT_GOAL, OTHERS
from bench.sampler.torch_samplers import sorted_top_k_top_p, transformers_processors
from tailrace import kernels
from tailrace.sampling import Guidance, Rows, Sampler, SamplingParams, Slots
from tailrace.sampling.backends import BackendName

HISTORY = 1000


def ours(
    params: dict[str, Any], pool: Pool, rows: int, backend: BackendName | None = None
) -> Callable[[torch.Tensor], Any]:
    vocab = pool.rows.shape[1]
    slots = Slots(rows, vocab)
    history = torch.randint(0, vocab, (HISTORY,), generator=torch.Generator().manual_seed(1)).tolist()
    for slot in range(rows):
        slots.add(
            slot,
            SamplingParams(**params),
            key=slot,
            handled_by_caller=("seed", "guidance_scale"),
            prompt=history[: HISTORY // 2],
            output=history[HISTORY // 2 :],
        )
    sampler, where = Sampler(slots, backend), Rows.plain(range(rows), range(rows), [HISTORY] * rows)
    if (scale := params.get("guidance_scale", 1.0)) == 1.0:
        return lambda logits: sampler(logits, where)
    # pairs of rows: as many companions, as cold, behind the rows
    where, turns = replace(where, guidance=Guidance.of(range(rows, 2 * rows), [scale] * rows)), count()
    return lambda _: sampler(pool.take(2 * rows, next(turns)), where)


def measure(runs: dict[str, Callable[[torch.Tensor], Any]], pool: Pool, rows: int, seconds: float) -> dict[str, float]:
    """Median µs per row of each, in turns, so that a noisy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    turn = 0
    for run in runs.values():
        run(pool.take(rows, 0))
    gc.collect()
    gc.disable()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["floor"]) < 5:
        for name, run in runs.items():
            turn += 1
            logits = pool.take(rows, turn)
            begin = time.perf_counter()
            run(logits)
            times[name].append((time.perf_counter() - begin) / rows * 1e6)
    gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}


def lines(pool: Pool, rows: int, dtype: str, threads: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases on one pool."""
    runs: dict[str, Callable[[torch.Tensor], Any]] = {"floor": read_once}
    runs |= {
        name: ours(params, pool, rows) for name, (params, _) in CASES.items() if not args.only or name in args.only
    }
    us = measure(runs, pool, rows, args.seconds * len(runs))
    found = []
    for name in list(runs)[1:]:
        goal = CASES[name][1] if "flat" not in pool.name else FLAT_GOAL
        found.append(
            {
                "case": name,
                "rows of": pool.name,
                "dtype": dtype,
                "rows": rows,
                "threads": threads,
                "µs/row": us[name],
                "floor µs": us["floor"],
                "× floor": us[name] / us["floor"],
                "goal": goal or "-",
            }
        )
    return found


def against(pool: Pool, rows: int, threads: int, seconds: float) -> list[dict[str, Any]]:
    """Ours against the two baselines, where they have the case."""
    found = []
    for name, params in (("top-p 0.9", NUCLEUS), ("top-k + top-p, seed", BOTH), ("min-p", CASES["min-p"][0])):
        runs = {"floor": read_once, "ours": ours(params, pool, rows), "transformers": transformers_processors(params)}
        if "min_p" not in params:
            runs["sort"] = lambda x, p=params: sorted_top_k_top_p(x, p.get("top_k", 0), p["top_p"], p["temperature"])
        us = measure(runs, pool, rows, seconds)
        found.append(
            {
                "case": name,
                "rows of": pool.name,
                "rows": rows,
                "threads": threads,
                "ours µs": us["ours"],
                "sort µs": us.get("sort", float("nan")),
                "sort ×": us.get("sort", float("nan")) / us["ours"],
                "transformers µs": us["transformers"],
                "transformers ×": us["transformers"] / us["ours"],
            }
        )
    return found


def others(pool: Pool, rows: int, threads: int, seconds: float) -> list[dict[str, Any]]:
    """A row of each of OTHERS by the kernels and by the reference, beside a plain draw: what neighbours on its thread
    wait."""
    found = []
    for name, params in OTHERS.items():
        runs = {
            "floor": read_once,
            "plain": ours(CASES["temperature"][0], pool, rows),
            "ours": ours(params, pool, rows),
            "reference": ours(params, pool, rows, "reference"),
        }
        us = measure(runs, pool, rows, seconds)
        found.append(
            {
                "case": name,
                "rows of": pool.name,
                "rows": rows,
                "threads": threads,
                "plain µs": us["plain"],
                "µs/row": us["ours"],
                "× plain": us["ours"] / us["plain"],
                "reference µs": us["reference"],
                "reference × plain": us["reference"] / us["plain"],
                "gain ×": us["reference"] / us["ours"],
            }
        )
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampler", description=__doc__)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="cuda: gpu.py; interpreter: the same, untimed")
    parser.add_argument(
        "--vocab", type=int, nargs="+", default=[32_000, 128_256, 262_144], help="synthetic vocabularies"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, cores()}))
    parser.add_argument("--only", nargs="+", choices=list(CASES), help="cases (default: all)")
    parser.add_argument("--seconds", type=float, default=0.25, help="measuring time per case")
    parser.add_argument("--model", help="whose logits are the real ones (default: the small default model)")
    parser.add_argument("--quick", action="store_true", help="V = 128,256, 32 rows only")
    parser.add_argument(
        "--others", action="store_true", help="only the methods that the reference drew before, beside it"
    )
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser


def measured(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """All cases of all pools of logits."""
    vocabs, counts = ([128_256], [32]) if args.quick else (args.vocab, args.rows)
    found: dict[str, list[dict[str, Any]]] = {"results": [], "compared": [], "others": []}
    for dtype in DTYPES:
        pools = [lambda d=dtype: real(args.model, DTYPES[d])]
        pools += [
            lambda k=kind, v=v, d=dtype: synthetic(k, v, DTYPES[d]) for v in vocabs for kind in ("peaked", "flat")
        ]
        for make in pools:
            pool = make()
            for threads in args.threads:
                torch.set_num_threads(threads)
                kernels.set_num_threads(threads)
                main_size = dtype == "float32" and (
                    pool.rows.shape[1] in (vocabs[0], 128_256) or "flat" not in pool.name
                )
                for rows in [] if args.others else counts if main_size and threads == 1 else [32]:
                    found["results"] += lines(pool, rows, dtype, threads, args)
                if dtype == "float32" and threads == 1:
                    found["others"] += others(pool, 4, threads, max(1.0, args.seconds))
                    if not args.others:
                        found["compared"] += against(pool, 8, threads, max(1.0, args.seconds))
            print(f"measured: {pool.name}, {dtype}", file=sys.stderr, flush=True)
    return found


def run(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = parser().parse_args(argv)
    with torch.inference_mode():
        record = {"machine": machine(), **measured(args)}
    print(f"{record['machine']['cpu']}, {record['machine']['cores']} cores; floor: one streaming read of the row")
    print(table(record["results"]))
    print("\nagainst others, one thread")
    print(table(record["compared"]))
    print("\nbeside a plain draw and the reference, one thread")
    print(table(record["others"]))
    if args.json:
        write_json(args.json, record)
    return 0
