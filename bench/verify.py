"""Verification of drafts: 64 requests × 5 drafts, against one streaming read of the target rows that are looked at, and against torch.

The rows looked at are those that a token came from; under rule block all of a request's up to the first impossible draft. The baseline
does what servers do on tensors: temperature, top-p by sorting, softmax, acceptance, residual and recovery by an exponential race, bonus;
all rows at once, fixed shapes. Ours and the read take turns, so that a noisy moment hits both. Targets are peaked rows with one strong
token, the draft of the one-hot cases; dense proposals are the target's distribution with noise on its logits. How many tokens a request
gets is printed: with an acceptance of 0.7 it is 2.9 of 6.

And the drawing of drafts from logits, with the q that each comes with: against one streaming read of those logits, and against the way in
torch that serves what the kernels lack. Temperature alone writes all of q: a read and a write more than truncation needs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench.harness import machine, table, write_json
from bench.sampler import BOTH, DTYPES, NUCLEUS, Pool, floor, synthetic

from tailrace import _cpu, kernels
from tailrace.drafting.base import Draft, DraftRequest
from tailrace.drafting.pick import Picker
from tailrace.kernels.rows import Rule
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots
from tailrace.sampling.sampler import Backend

TEMPERATURE, TOP_P = 0.8, 0.95
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
STRONG = {"0.7": 1.95, "all": 40.0}  # the strong token's lead over the rest of the row together, in logits
NOISE = {"0.7": 0.8, "all": 0.0}  # standard deviation of what the drafter gets wrong, in logits


@dataclass(frozen=True)
class Work:
    """targets: [R, V]. proposals: float32 [R, V] or None. drafts: of each request."""

    targets: torch.Tensor
    proposals: torch.Tensor | None
    drafts: torch.Tensor

    @property
    def width(self) -> int:
        return self.drafts.shape[1] + 1


def make(requests: int, drafts: int, vocab: int, acceptance: str, dense: bool, dtype: torch.dtype) -> Work:
    """Rows as a model gives them where drafts are good."""
    rng = torch.Generator().manual_seed(vocab)
    rows = requests * (drafts + 1)
    targets = torch.randn(rows, vocab, generator=rng).mul_(2.5)
    strong = torch.randint(0, vocab, (rows, 1), generator=rng)
    rivals = torch.randint(0, vocab, (rows, 8), generator=rng)
    lead = torch.tensor(STRONG[acceptance]) + 14.0
    targets.scatter_(1, rivals, 13.0 + torch.rand(rows, 8, generator=rng)).scatter_(1, strong, lead.expand(rows, 1))
    targets = targets.to(dtype)
    if not dense:
        return Work(targets, None, strong.view(requests, drafts + 1)[:, :drafts])
    proposals = torch.empty(rows, vocab)
    for row in range(rows):
        noisy = targets[row].float() + NOISE[acceptance] * torch.randn(vocab, generator=rng)
        proposals[row] = nucleus(noisy[None])[0]
    drawn = torch.multinomial(proposals, 1, generator=rng).view(requests, drafts + 1)
    return Work(targets, proposals, drawn[:, :drafts])


def nucleus(logits: torch.Tensor) -> torch.Tensor:
    """Temperature, then top-p by sorting the vocabulary: probabilities float32 [R, V]."""
    x, order = (logits.float() / TEMPERATURE).sort(dim=-1)
    outside = x.softmax(-1).cumsum_(-1) <= 1 - TOP_P
    outside[:, -1] = False
    x.masked_fill_(outside, float("-inf"))
    return torch.empty_like(x).scatter_(-1, order, x).softmax(-1)


def in_torch(work: Work) -> torch.Tensor:
    """Rejection sampling of all requests at once; tokens [N, K + 1], −1 where there is none."""
    n, k = work.drafts.shape
    p = nucleus(work.targets).view(n, k + 1, -1)
    target, bonus = p[:, :k], p[:, k]
    drawn = work.drafts[:, :, None]
    mine = target.gather(2, drawn)[..., 0]
    q = None if work.proposals is None else work.proposals.view(n, k + 1, -1)[:, :k]
    theirs = torch.ones_like(mine) if q is None else q.gather(2, drawn)[..., 0]
    accepted = (torch.rand_like(mine) * theirs < mine).long().cumprod(1)
    rest = target.scatter(2, drawn, 0.0) if q is None else (target - q).clamp_(min=0)
    race = torch.empty(n, 1, rest.shape[2]).exponential_(1)
    recovered = (rest / race).argmax(-1)
    extra = (bonus / torch.empty_like(bonus).exponential_(1)).argmax(-1)
    count = accepted.sum(1)
    follower = torch.where(count == k, extra, recovered.gather(1, count.clamp(max=k - 1)[:, None])[:, 0])
    tokens = torch.where(accepted.bool(), work.drafts, -1)
    return torch.cat([tokens, torch.full((n, 1), -1)], 1).scatter_(1, count[:, None], follower[:, None])


def ours(work: Work, params: dict[str, Any], rule: Rule) -> Callable[[], torch.Tensor]:
    """A step; how many tokens each request got."""
    n = work.drafts.shape[0]
    slots = Slots(n, work.targets.shape[1])
    for slot in range(n):
        slots.add(slot, SamplingParams(**params), key=slot, prompt=[1], handled=("seed",))
    drafts = work.drafts.tolist()
    rows = Rows.drafted(range(n), [1] * n, drafts, [rule] * n, work.proposals)
    sampler = Sampler(slots)
    return lambda: sampler(work.targets, rows).num_tokens


def together(work: Work, truncated: bool) -> list[int]:
    """Rows that block verification looks at: it ends where a draft is impossible."""
    n, k = work.drafts.shape
    if not truncated:
        return [work.width] * n
    p = nucleus(work.targets).view(n, k + 1, -1)[:, :k].gather(2, work.drafts[:, :, None])[..., 0]
    return (1 + (p > 0).long().cumprod(1).sum(1)).tolist()


def reading(work: Work, looked_at: list[int]) -> Callable[[], None]:
    """One streaming read of the rows that are looked at."""
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
    """Least ms of two runs: torch needs seconds, and its first run maps its memory."""
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
    pool: Pool, params: dict[str, Any], requests: int, count: int, backend: Backend | None
) -> Callable[[], list[Draft]]:
    """A step: so many drafts for each request, all of them at once, from cold rows."""
    vocab = pool.rows.shape[1]
    slots = Slots(requests, vocab)
    for slot in range(requests):
        slots.add(slot, SamplingParams(**params), key=slot, prompt=[1], handled=("seed",))
    picker = Picker(Sampler(slots, backend))
    asks, turns = [DraftRequest(slot, [1], count, "rejection") for slot in range(requests)], itertools.count()

    def step() -> list[Draft]:
        with picker.start(asks) as picks:
            for _ in range(count):
                picks.take(pool.take(requests, next(turns)), range(requests))
            return picks.drafts()

    return step


def drafted(args: argparse.Namespace, dtype: str, kind: str) -> list[dict[str, Any]]:
    """Of drafts, µs each: of one request, where the step's own work shows, and of many."""
    pool, turns, found = synthetic(kind, args.vocab, DTYPES[dtype]), itertools.count(), []
    for requests in sorted({1, args.requests}):

        def read(requests: int = requests) -> None:
            for _ in range(args.drafts):
                floor(pool.take(requests, next(turns)))

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


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="tailrace bench verify", description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=["float32"])
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time per case")
    parser.add_argument("--no-torch", action="store_true", help="leave the baseline out: it takes seconds per case")
    parser.add_argument("--only-drafts", action="store_true", help="draw drafts, verify none")
    parser.add_argument("--json", type=Path, help="write the results here too")
    args = parser.parse_args(argv)
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
        f"{record['machine']['cpu']}, {args.threads} threads; {args.requests} × {args.drafts} drafts, V = {args.vocab:,}"
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
