"""The sampler on a GPU, case by case: device µs of a step, against one read and one copy of its logits and against what
others do.

Device time is the time of the kernels alone, on a cold cache (bench/lib/gpu_timing.py). "host" is how long a call of
Sampler.begin keeps Python busy. "whole" is the time until the call's draws are on the host. Rows are synthetic, as in
cpu.py. --draws also compares tokens with the CPU's (same_tokens.py). --device interpreter runs every case once in
Triton's interpreter, at tiny sizes. Such a run shows that the cases work; its times mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.lib.gpu_timing import Run, Stopwatch, Time, host_times
from bench.lib.harness import machine, table, write_json
from bench.lib.rows import distinct
from bench.sampler import same_tokens
from bench.sampler.cases import DEVICES
from bench.sampler.gpu_cases import CASES, GpuWork, work
from bench.sampler.gpu_peers import Sampling, always, installed, one_read, peers
from tailrace.kernels.gpu.step import StepReports
from tailrace.sampling.backends import backend_of
from tailrace.sampling.backends.gpu_numbers import ProposalColumns

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
FULL: dict[str, list[Any]] = {
    "vocab": [32_000, 128_256, 262_144],
    "rows": [1, 8, 32, 64, 128, 256, 512],
    "dtype": list(DTYPES),
}
QUICK: dict[str, list[Any]] = {"vocab": [128_256], "rows": FULL["rows"], "dtype": ["bf16"]}
TINY: dict[str, list[Any]] = {"vocab": [600], "rows": [3], "dtype": ["bf16"]}
HOST_CASES = ("greedy", "joint, seeds", "… + 3 penalties", "… + 5 logprobs", "joint, grammar", "mixed")


@dataclass(frozen=True)
class Size:
    """Of the steps that are measured together."""

    vocab: int
    rows: int
    dtype: str

    @property
    def goals(self) -> bool:
        """The size that they were set for."""
        return self.vocab == 128_256 and self.dtype == "bf16"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampler --device cuda", description=__doc__)
    parser.add_argument("--device", choices=DEVICES[1:], required=True)
    parser.add_argument("--vocab", type=int, nargs="+", help="vocabularies (default: 32000 128256 262144)")
    parser.add_argument("--rows", type=int, nargs="+", help="of a step (default: 1 to 512)")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), help="of the logits (default: all)")
    parser.add_argument("--quick", action="store_true", help="the sizes that goals were set for: V = 128,256 in bf16")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=list(CASES),
        metavar="CASE",
        help="cases (default: all); without any the baselines alone",
    )
    parser.add_argument("--no-others", action="store_true", help="ours and one read alone")
    parser.add_argument("--no-host", action="store_true", help="the device's time alone")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each")
    parser.add_argument(
        "--draws", type=int, default=0, help="also compare this many draws on real logits with the CPU's"
    )
    parser.add_argument("--logits", type=Path, help="real logits that --save-logits wrote, where there is no model")
    parser.add_argument("--save-logits", type=Path, help="write the model's logits here (25 MB), and do nothing else")
    parser.add_argument("--model", help="whose logits are the real ones (default: the small default model)")
    parser.add_argument("--json", type=Path, help="write the results here too, after each size")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here; --device interpreter needs none")
    sizes = TINY if args.device == "interpreter" else QUICK if args.quick else FULL
    for name, values in sizes.items():
        setattr(args, name, getattr(args, name) or values)
    return args


# ---- one size


def rows_of(kind: str, size: Size, device: torch.device) -> torch.Tensor:
    """Logits [R, V] on the device; no row less than drafts need."""
    some = distinct(kind, size.vocab).to(device, DTYPES[size.dtype])
    return some.repeat(-(-max(size.rows, 8) // some.shape[0]), 1)


def drawing(step: GpuWork) -> Run:
    """The kernels of the step, and nothing else.

    Raises:
        AssertionError: the case asks for what the kernels don't have.
    """
    gpu: Any = backend_of(step.slots, "gpu", step.logits.device)
    assert not gpu.falling_back(step.rows)
    drafts, reports, memory = None, StepReports(step.top), None
    if step.proposed:
        count = step.rows.num_rows
        memory = gpu.proposal_memory(count)
        places = np.array([memory.address(row) for row in range(count)])
        drafts, reports = ProposalColumns(places, [(1, 16)] * count), StepReports()
    prepared = gpu.prepare(step.logits, step.rows, reports, drafts)
    return lambda memory=memory: gpu.launch_draw(prepared)  # which must outlive the launches


def measured(
    size: Size, cases: list[str], others: dict[str, Sampling] | None, watch: Stopwatch
) -> tuple[list[dict[str, Any]], dict[str, GpuWork]]:
    """A line per case and baseline; and the cases' steps. others: None leaves all baselines out."""
    pools = {kind: rows_of(kind, size, watch.device) for kind in ("peaked", "flat")}
    steps = {name: work(CASES[name], pools[CASES[name].rows], size.rows) for name in cases}
    logits = pools["peaked"][: size.rows]
    runs = {"one read": one_read(logits)} if others is None else always(logits) | peers(others, logits)
    runs |= {name: drawing(step) for name, step in steps.items()}
    counts = {step.logits.shape[0] for step in steps.values()} - {size.rows}
    runs |= {read_of(count): one_read(pools["peaked"][:count]) for count in counts}
    times = watch.measure(runs)
    read = {size.rows: times["one read"].us} | {count: times.pop(read_of(count)).us for count in counts}
    lines = []
    for name, found in times.items():
        rows = steps[name].logits.shape[0] if name in steps else size.rows
        lines.append(line(name, name in steps, size, rows, found, read[rows]))
    return lines, steps


def read_of(count: int) -> str:
    return f"one read of {count}"


def line(name: str, ours: bool, size: Size, rows: int, found: Time, read_us: float) -> dict[str, Any]:
    return {
        "case": name,
        "ours": ours,
        "V": size.vocab,
        "dtype": size.dtype,
        "rows": size.rows,
        "rows read": rows,
        "us": found.us,
        "reads": found.us / read_us,
        "spread": found.spread,
        "how": found.how,
    }


def on_host(size: Size, steps: dict[str, GpuWork], watch: Stopwatch) -> list[dict[str, Any]]:
    """What the host has to do with a step, committing included: between two steps the slots move on."""
    lines = []
    for name in (name for name in HOST_CASES if name in steps):
        step = steps[name]
        sampler, slots, everybody = step.sampler(), step.slots, range(step.rows.num_requests)
        committed: list[float] = []

        def begin(sampler: Any = sampler, step: GpuWork = step) -> Any:
            return sampler.begin(step.logits, step.rows)

        def finish(
            pending: Any, slots: Any = slots, where: range = everybody, committed: list[float] = committed
        ) -> None:
            tokens = pending.wait().tokens()
            start = time.perf_counter()
            slots.commit(where, tokens)
            committed.append((time.perf_counter() - start) * 1e6)

        rounds = watch.rounds if watch.device.type == "cuda" else 1
        host_times(begin, finish, watch.device, 1)  # the first brings the slots to the device
        host, whole = host_times(begin, finish, watch.device, rounds)
        lines.append(
            {
                "case": name,
                "V": size.vocab,
                "dtype": size.dtype,
                "rows": size.rows,
                "host us": host,
                "whole us": whole,
                "of which commit us": sorted(committed)[len(committed) // 2],
            }
        )
    return lines


# ---- goals


def goals(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was promised, next to what was found."""
    us = {(x["case"], x["rows"]): x for x in lines if Size(x["V"], x["rows"], x["dtype"]).goals}
    found: list[dict[str, Any]] = []

    def add(what: str, rows: int, figure: float, goal: float, met: Callable[[float, float], bool]) -> None:
        found.append(
            {"what": what, "rows": rows, "found": figure, "goal": goal, "": "met" if met(figure, goal) else "MISSED"}
        )

    def at_most(figure: float, goal: float) -> bool:
        return figure <= goal

    for rows in sorted({rows for _, rows in us}):
        if (mine := us.get(("joint, seeds", rows))) is None:
            continue
        if rows <= 64:
            add("joint, seeds: µs", rows, mine["us"], 25.0, at_most)
        if rows == 256:
            add("joint, seeds: reads", rows, mine["reads"], 2.5, at_most)
        for case in ("… + 3 penalties", "… + 5 logprobs", "joint, 5 logprobs"):
            if (more := us.get((case, rows))) is not None:
                add(f"{case} / joint, seeds", rows, more["us"] / mine["us"], 1.3, at_most)
        if (unseeded := us.get(("joint", rows))) is not None:
            add("joint, seeds / joint", rows, mine["us"] / unseeded["us"], 1.03, at_most)
        for case, peer in ((c, x) for (c, r), x in us.items() if r == rows and not x["ours"]):
            if case.split(",")[0] in ("FlashInfer", "vLLM", "sort"):
                add(f"{case} / joint, seeds", rows, peer["us"] / mine["us"], 1.0, lambda a, b: a > b)
    return found


# ---- all


def shown(lines: list[dict[str, Any]]) -> str:
    """Cases down, rows across: µs (reads)."""
    out = []
    for vocab, dtype in dict.fromkeys((x["V"], x["dtype"]) for x in lines):
        here = [x for x in lines if (x["V"], x["dtype"]) == (vocab, dtype)]
        cells = {
            (x["case"], x["rows"]): f"{x['us']:.1f} ({x['reads']:.1f})" + "*" * (x["how"] == "events") for x in here
        }
        counts = sorted({x["rows"] for x in here})
        rows = [
            {f"V = {vocab:,}, {dtype}": case} | {f"{n}": cells.get((case, n), "-") for n in counts}
            for case in dict.fromkeys(x["case"] for x in here)
        ]
        out.append(table(rows))
    return "\n\n".join(out)


def run(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    device = torch.device("cuda" if args.device == "cuda" else "cpu")
    if args.save_logits is not None:
        same_tokens.save(args.model, args.save_logits)
        return 0
    record: dict[str, Any] = {"machine": machine(), "device": name_of(device), "results": [], "host": [], "goals": []}
    cases = list(CASES) if args.only is None else args.only
    with torch.inference_mode():
        others = None if args.no_others else installed(device)
        watch = Stopwatch(device, args.rounds)
        for size in (Size(v, r, d) for d in args.dtype for v in args.vocab for r in args.rows):
            start = time.perf_counter()
            gc.collect()
            gc.disable()  # what it frees, it must not free during a capture
            lines, steps = measured(size, cases, others, watch)
            record["results"] += lines
            record["host"] += [] if args.no_host else on_host(size, steps, watch)
            gc.enable()
            record["goals"] = goals(record["results"])
            print(f"measured: {size}, {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
            if args.json:
                write_json(args.json, record)
        print(f"{record['device']}; device µs of a step, cold cache (one reads of its logits){TIMELESS[args.device]}")
        print(shown(record["results"]))
        for title, key in (("the host's part, µs of a step", "host"), ("goals", "goals")):
            if record[key]:
                print(f"\n{title}\n{table(record[key])}")
        if args.draws:
            record["same tokens"] = same_tokens.check(
                same_tokens.real_logits(args.model, args.logits), device, args.draws
            )
            print("\n" + same_tokens.shown(record["same tokens"]))
    if args.json:
        write_json(args.json, record)
    return 0


TIMELESS = {"cuda": "; *: without a graph", "interpreter": ": IN TRITON'S INTERPRETER, the times mean nothing"}


def name_of(device: torch.device) -> str:
    """In words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
