"""Measure the verification of drafts (64 requests × 5 drafts), against one streaming read of the needed target rows and
against torch.

The rows needed are those that a token came from; under rule block all of a request's rows up to the first impossible
draft. The baseline does what servers do on tensors: temperature, top-p by sorting, softmax, acceptance, residual and
recovery by an exponential race, bonus; all rows at once, with fixed shapes. Ours and the read take turns, so that noise
affects both alike. Targets are peaked rows with one strong token, which is the draft of the one-hot cases. Dense
proposals are the target's distribution with noise on its logits. The number of tokens per request is printed: with an
acceptance of 0.7 it is 2.9 of 6.

Then the drawing of drafts from logits, with their q: against one streaming read of those logits, and against torch,
which does what the kernels can't. Temperature alone must write all of q: a read and a write more than truncation needs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.lib.harness import machine, table, write_json
from bench.lib.rows import BOTH, DTYPES, NUCLEUS, Pool, read_once, synthetic
from bench.speculation.verify_work import STRONG, TEMPERATURE, TOP_P, VerifyWork, in_torch, make, nucleus
from tailrace import _cpu, kernels
from tailrace.drafting.base import Draft, DraftRequest
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.kernels.rows import Rule
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots
from tailrace.sampling.backends import BackendName

PARAMS: dict[str, dict[str, Any]] = {
    "top-p": {"temperature": TEMPERATURE, "top_p": TOP_P},
    "temperature": {"temperature": TEMPERATURE},
}
GOAL_READ, GOAL_TORCH = 3.0, 20.0
# what drafts are drawn under → (parameters, goal in reads)
DRAFTED: dict[str, tuple[dict[str, Any], float | None]] = {
    "temperature": ({"temperature": TEMPERATURE}, None),
    "top-p": (NUCLEUS, 2.0),
    "top-k + top-p": (BOTH, 2.0),
}


def ours(work: VerifyWork, params: dict[str, Any], rule: Rule) -> Callable[[], torch.Tensor]:
    """A step; returns the number of tokens of each request."""
    n = work.drafts.shape[0]
    slots = Slots(n, work.targets.shape[1])
    for slot in range(n):
        slots.add(slot, SamplingParams(**params), key=slot, prompt=[1], handled_by_caller=("seed",))
    drafts = work.drafts.tolist()
    rows = Rows.drafted(range(n), [1] * n, drafts, rule, work.proposals)
    sampler = Sampler(slots)
    return lambda: sampler(work.targets, rows).num_tokens


def together(work: VerifyWork, truncated: bool) -> list[int]:
    """Number of rows that block verification reads: it ends where a draft is impossible."""
    n, k = work.drafts.shape
    if not truncated:
        return [work.width] * n
    p = nucleus(work.targets).view(n, k + 1, -1)[:, :k].gather(2, work.drafts[:, :, None])[..., 0]
    return (1 + (p > 0).long().cumprod(1).sum(1)).tolist()


def reading(work: VerifyWork, looked_at: list[int]) -> Callable[[], None]:
    """One streaming read of the rows that are needed."""
    bytes_of_row = work.targets.shape[1] * work.targets.element_size()
    first = work.targets.data_ptr()
    places = [(first + i * work.width * bytes_of_row, count * bytes_of_row) for i, count in enumerate(looked_at)]

    def read() -> None:
        for address, size in places:
            _cpu.stream(address, size)

    return read


def measure(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median ms of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["read"]) < 5:
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def once(run: Callable[[], Any]) -> float:
    """The shorter time in ms of two runs: torch needs seconds, and its first run maps memory."""
    found = []
    for _ in range(2):
        begin = time.perf_counter()
        run()
        found.append((time.perf_counter() - begin) * 1e3)
    return min(found)


def lines(args: argparse.Namespace, acceptance: str, dense: bool, dtype: str) -> list[dict[str, Any]]:
    """All rules and parameters on one set of rows."""
    work = make(args.requests, args.drafts, args.vocab, acceptance, dense, DTYPES[dtype])
    in_torch_ms = once(lambda: in_torch(work)) if not args.no_torch else float("nan")
    rules: tuple[Rule, ...] = ("exact", "rejection", "block", "typical") if dense else ("exact", "rejection", "typical")
    found = []
    for name, params in PARAMS.items():
        for rule in rules:
            run = ours(work, params, rule)
            tokens = run().tolist()
            looked_at = together(work, name == "top-p") if rule == "block" else tokens
            ms = measure({"read": reading(work, looked_at), "ours": run}, args.seconds)
            comparable = name == "top-p" and rule == "rejection"
            found.append(
                {
                    "rule": f"{rule}, {'dense' if dense else 'one-hot'}",
                    "asked": name,
                    "dtype": dtype,
                    "acceptance": acceptance,
                    "tokens": sum(tokens) / len(tokens),
                    "rows": sum(looked_at),
                    "ms": ms["ours"],
                    "read ms": ms["read"],
                    "× read": ms["ours"] / ms["read"],
                    "goal": GOAL_READ if name == "top-p" else "-",
                    "torch ms": in_torch_ms if comparable else float("nan"),
                    "torch ×": in_torch_ms / ms["ours"] if comparable else float("nan"),
                    "torch goal": GOAL_TORCH if comparable else "-",
                }
            )
    return found


def drafting(
    pool: Pool, params: dict[str, Any], requests: int, count: int, backend: BackendName | None
) -> Callable[[], list[Draft]]:
    """A step: `count` drafts for each request, all at once, from cold rows."""
    vocab = pool.rows.shape[1]
    slots = Slots(requests, vocab)
    for slot in range(requests):
        slots.add(slot, SamplingParams(**params), key=slot, prompt=[1], handled_by_caller=("seed",))
    draft_sampler = DraftSampler(Sampler(slots, backend))
    asks, turns = [DraftRequest(slot, [1], count, "rejection") for slot in range(requests)], itertools.count()

    def step() -> list[Draft]:
        with draft_sampler.start(asks) as draft_batch:
            for _ in range(count):
                draft_batch.sample(pool.take(requests, next(turns)), range(requests))
            return draft_batch.drafts()

    return step


def drafted(args: argparse.Namespace, dtype: str, kind: str) -> list[dict[str, Any]]:
    """µs of drafting: for one request, where the step's fixed cost shows, and for many."""
    pool, turns, found = synthetic(kind, args.vocab, DTYPES[dtype]), itertools.count(), []
    for requests in sorted({1, args.requests}):

        def read(requests: int = requests) -> None:
            for _ in range(args.drafts):
                read_once(pool.take(requests, next(turns)))

        each, wanted = 1e3 / (requests * args.drafts), requests > 1 and kind == "peaked"
        for name, (params, goal) in DRAFTED.items():
            mine = drafting(pool, params, requests, args.drafts, None)
            us = {key: ms * each for key, ms in measure({"read": read, "ours": mine}, args.seconds).items()}
            in_torch_us = float("nan")
            if not args.no_torch:
                in_torch_us = once(drafting(pool, params, requests, args.drafts, "reference")) * each
            found.append(
                {
                    "drafts of": pool.name,
                    "asked": name,
                    "dtype": dtype,
                    "requests": requests,
                    "µs/draft": us["ours"],
                    "read µs": us["read"],
                    "× read": us["ours"] / us["read"],
                    "goal": goal if goal and wanted else "-",
                    "torch µs": in_torch_us,
                    "torch × read": in_torch_us / us["read"],
                    "torch ×": in_torch_us / us["ours"],
                }
            )
    return found


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.verify", description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=["float32"])
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time per case")
    parser.add_argument("--no-torch", action="store_true", help="leave the baseline out: it takes seconds per case")
    parser.add_argument("--only-drafts", action="store_true", help="draw drafts, verify none")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    kernels.set_num_threads(args.threads)
    results: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    with torch.inference_mode():
        for dtype in args.dtype:
            for kind in ("peaked", "flat"):
                drawn += drafted(args, dtype, kind)
                print(f"measured: {dtype}, drafts of {kind} rows", file=sys.stderr, flush=True)
            for dense in () if args.only_drafts else (False, True):
                for acceptance in STRONG:
                    results += lines(args, acceptance, dense, dtype)
                    print(
                        f"measured: {dtype}, {'dense' if dense else 'one-hot'}, {acceptance}",
                        file=sys.stderr,
                        flush=True,
                    )
    record = {"machine": machine(), "results": results, "drafts": drawn}
    print(
        f"{record['machine']['cpu']}, {args.threads} threads; {args.requests} × {args.drafts} drafts, "
        f"V = {args.vocab:,}"
    )
    if results:
        print(table(results))
        print()
    print(table(drawn))
    if args.json:
        write_json(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
