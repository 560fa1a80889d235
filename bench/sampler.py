"""The sampler, case by case: µs per row, as multiples of one streaming read of the same row, and against what others
do.

Rows are cold: each call gets other rows of a pool far larger than the last-level cache. The floor is a loop that reads
the row and does nothing else. Baselines, in turns with ours: the sort-based top-k/top-p with an exponential race that
servers run on the CPU, and transformers' processors with multinomial. Rows: real logits of the default model (--model),
and synthetic ones: "peaked" (normal with σ 2.5 and 30 strong tokens) and "flat" (standard normal: the worst case).
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import torch
from bench.harness import cores, machine, table, write_json

from tailrace import _cpu, kernels
from tailrace.options import Watermark
from tailrace.sampling import Guidance, Rows, Sampler, SamplingParams, Slots
from tailrace.sampling.backends import BackendName

POOL_BYTES = 256 << 20  # of cold rows
MAX_POOL_ROWS = 512
DISTINCT = 32  # synthetic rows; more are copies of them
HISTORY = 1000
DEVICES = ("cpu", "cuda", "interpreter")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NUCLEUS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9}
BOTH: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 1}
PENALTIES: dict[str, Any] = BOTH | {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}
# case → (parameters, goal as a multiple of the floor at V = 128,256, float32, one thread)
CASES: dict[str, tuple[dict[str, Any], float | None]] = {
    "greedy": ({"temperature": 0.0}, 1.2),
    "temperature": ({"temperature": 0.8}, 1.7),
    "min-p": ({"temperature": 0.8, "min_p": 0.05}, 1.5),
    "top-n-sigma": ({"temperature": 0.8, "top_n_sigma": 1.0}, 1.5),
    "top-k 50": ({"temperature": 0.8, "top_k": 50}, 1.5),
    "top-p 0.9": (NUCLEUS, 2.5),
    "top-k + top-p, seed": (BOTH, 1.5),
    "… + 3 penalties, 1,000 tokens": (PENALTIES, 2.0),
    "… + 5 logprobs": (PENALTIES | {"logprobs": 5}, 2.5),
    "… + sampling mask": (PENALTIES | {"return_sampling_mask": True}, 2.5),
    "top-p 0.9, 5 logprobs": (NUCLEUS | {"logprobs": 5}, None),
    "top-p 0.9, sampling mask": (NUCLEUS | {"return_sampling_mask": True}, None),
    "guided, top-k + top-p": (BOTH | {"guidance_scale": 1.5}, 3.0),
    "guided, temperature": ({"temperature": 0.8, "guidance_scale": 1.5}, 3.0),
    "typical 0.9": ({"typical_p": 0.9}, None),
    "eta": ({"eta_cutoff": 1e-3}, None),
    "p-less": ({"temperature": 0.8, "p_less": True}, None),
    "XTC + min-p": ({"min_p": 0.02, "xtc_probability": 0.5}, None),
}
FLAT_GOAL = 10.0
# those that llama.cpp, koboldcpp and transformers have beyond these; beside the reference, which drew them before the
# kernels had them
OTHERS: dict[str, dict[str, Any]] = {
    "mirostat 2": {"mirostat": 2},
    "mirostat 1": {"mirostat": 1},
    "tail-free 0.95": {"tfs_z": 0.95},
    "top-h 0.5": {"top_h": 0.5},
    "min-k": {"min_k": True, "temperature": 0.8},
    "adaptive-p 0.5, min-p 0.05": {"adaptive_target": 0.5, "min_p": 0.05},
    "adaptive-p 0.5": {"adaptive_target": 0.5},
    "SynthID, top-k 100": {"watermark": Watermark(kind="synthid", key=1), "top_k": 100},
    "SynthID, top-p 0.95": {"watermark": Watermark(kind="synthid", key=1), "top_p": 0.95},
    "SynthID": {"watermark": Watermark(kind="synthid", key=1)},
    "SynthID of transformers, top-k 100": {
        "watermark": Watermark(kind="synthid", scheme="transformers", keys=tuple(range(1, 31))),
        "top_k": 100,
    },
}


@dataclass(frozen=True)
class Pool:
    """Cold rows, [rows, V]; `take(n)` hands out others each time."""

    name: str
    rows: torch.Tensor

    def take(self, n: int, turn: int) -> torch.Tensor:
        start = turn * n % max(1, self.rows.shape[0] - n + 1)
        return self.rows[start : start + n]


def synthetic(kind: str, vocab: int, dtype: torch.dtype) -> Pool:
    """Rows of one kind; a block of distinct ones, repeated to fill the pool (each copy lies elsewhere in memory)."""
    count = min(MAX_POOL_ROWS, max(128, POOL_BYTES // (vocab * 4)))
    return Pool(f"{kind} {vocab:,}", distinct(kind, vocab).to(dtype).repeat(-(-count // DISTINCT), 1))


def distinct(kind: str, vocab: int) -> torch.Tensor:
    """float32 [DISTINCT, V], always the same."""
    rng = torch.Generator().manual_seed(vocab)
    some = torch.randn(DISTINCT, vocab, generator=rng)
    if kind == "peaked":
        some *= 2.5
        strong = torch.randint(0, vocab, (DISTINCT, 30), generator=rng)
        some[torch.arange(DISTINCT)[:, None], strong] += torch.rand(DISTINCT, 30, generator=rng) * 12 + 4
    return some


def real(model: str | None, dtype: torch.dtype) -> Pool:
    """Logits of the default model over a text."""
    import pydoc_data.topics

    import transformers

    from tailrace.config import ModelConfig
    from tailrace.models import resolve
    from tailrace.text.tokenizer import Tokenizer

    local = resolve(ModelConfig(model=model))
    ids = Tokenizer.load(local.folder).encode("\n".join(pydoc_data.topics.topics.values()), add_special_tokens=False)[
        :256
    ]
    network = transformers.AutoModelForCausalLM.from_pretrained(local.folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = network(torch.tensor([ids])).logits[0]
    count = max(1, min(MAX_POOL_ROWS, POOL_BYTES // (logits.shape[1] * 4)) // 256)
    return Pool(f"{local.name} {logits.shape[1]:,}", logits.to(dtype).repeat(count, 1))


# ---- what others do


def sorted_top_k_top_p(logits: torch.Tensor, k: int, p: float, temperature: float) -> torch.Tensor:
    """Sort the vocabulary, mask, draw by an exponential race: the usual way of servers in torch."""
    x, order = (logits.float() / temperature).sort(dim=-1)
    if k:
        x = x.masked_fill(x < x.gather(1, torch.full((x.shape[0], 1), x.shape[1] - k, device=x.device)), float("-inf"))
    if p < 1:
        below = x.softmax(-1).cumsum(-1) <= 1 - p
        below[:, -1] = False
        x = x.masked_fill(below, float("-inf"))
    probabilities = torch.empty_like(x).scatter_(-1, order, x).softmax(-1)
    return probabilities.div_(torch.empty_like(probabilities).exponential_(1)).argmax(-1)


def transformers_processors(params: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Its own processors, then multinomial."""
    import transformers as t

    made: list[Any] = []
    if params.get("temperature", 1.0) not in (0.0, 1.0):
        made.append(t.TemperatureLogitsWarper(params["temperature"]))
    for name, make in (("top_k", t.TopKLogitsWarper), ("top_p", t.TopPLogitsWarper), ("min_p", t.MinPLogitsWarper)):
        if name in params:
            made.append(make(params[name]))

    def run(logits: torch.Tensor) -> torch.Tensor:
        scores = logits.float()
        for processor in made:
            scores = processor(torch.empty((scores.shape[0], 0), dtype=torch.int64), scores)
        return torch.multinomial(scores.softmax(-1), 1)

    return run


# ---- measuring


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


def floor(logits: torch.Tensor) -> None:
    """One streaming read."""
    _cpu.stream(logits.data_ptr(), logits.numel() * logits.element_size())


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
    runs: dict[str, Callable[[torch.Tensor], Any]] = {"floor": floor}
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
        runs = {"floor": floor, "ours": ours(params, pool, rows), "transformers": transformers_processors(params)}
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
            "floor": floor,
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


def asked_device(argv: list[str] | None) -> str:
    """Where to measure; each place has flags of its own."""
    parser = argparse.ArgumentParser(prog="tailrace bench sampler", add_help=False, allow_abbrev=False)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    return parser.parse_known_args(argv)[0].device


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tailrace bench sampler", description=__doc__)
    parser.add_argument(
        "--device", choices=DEVICES, default="cpu", help="cuda: bench/sampler_gpu.py; interpreter: the same, untimed"
    )
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


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    if (device := asked_device(argv)) != "cpu":
        if device == "interpreter":  # before anything imports Triton
            os.environ["TRITON_INTERPRET"] = "1"
        return import_module("bench.sampler_gpu").main(argv)
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


if __name__ == "__main__":
    sys.exit(main())
