"""Measure what a decode step of the engine computes: shares of processor time by kind of work, over all its threads.

    python -m bench.step_profile [--streams 32] [--weights quantized]

One engine in a process of its own, streams that only decode, sampled with top-p. Linux's `perf` (Debian: linux-perf)
samples it by the processor's clock, which works in virtual machines, too. A symbol's kind is the first in KINDS whose
pattern it has.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from bench.lib.harness import Worker, cores, machine, table, write_json
from tailrace.config import ModelConfig
from tailrace.models import resolve

SAMPLES_PER_SECOND = 997  # no multiple of anything that recurs
KINDS = {
    "linear layers": r"linear|^block|tiles?_bf16|product|rows_vnni|rows_neon|panel|quantize|widen|round_row|gemm",
    "attention": r"scores_|values_|soften|_kv|attend|attention|softmax",
    "norms, gates, rotary embeddings": r"norm|rope|rotary|gate|silu|elementwise|embedding",
    "sampling": r"^(whole|pass|merge)\b|Walk|scan|sample|take_|hot_|keep|refine|draw|noise|logprobs|argmax",
    "waiting for the other thread": r"Pool::|pause|futex|sched|task_switch|pthread_cond",
    "torch": r"at::|c10|torch",
    "Python": r"^_?Py|nanobind|nb_|unicode|dict|list|gc_|tuple|object_|long_|vectorcall|collect|free|alloc",
}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.step_profile", description=__doc__)
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--weights", default="dequantized", choices=("dequantized", "quantized"))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=1500, help="at most, of a stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    if shutil.which("perf") is None:
        print("this needs Linux's perf (Debian: the package linux-perf)", file=sys.stderr)
        return 1
    resolve(ModelConfig(model=args.model, weights=args.weights))
    columns = {f"{streams} streams": profile(args, streams) for streams in args.streams}
    rows = [
        {"of the processor time": kind, **{name: f"{one.kinds[kind]:.3f}" for name, one in columns.items()}}
        for kind in (*KINDS, "other")
    ]
    print(
        table([*rows, {"of the processor time": "ms per step"} | {n: f"{c.step_ms:.1f}" for n, c in columns.items()}])
    )
    for name, one in columns.items():
        most = sorted(one.symbols, key=lambda symbol: -one.symbols[symbol])[:8]
        print(f"{name}, largest symbols:", "; ".join(f"{symbol} {one.symbols[symbol]:.3f}" for symbol in most))
    if args.json:
        write_json(args.json, {"machine": machine(), "weights": args.weights, "found": columns})
    return 0


class Profile(NamedTuple):
    """Shares of the processor time by kind and by symbol, and how long a step took meanwhile."""

    kinds: dict[str, float]
    symbols: dict[str, float]
    step_ms: float


def profile(args: argparse.Namespace, streams: int) -> Profile:
    """Raises RuntimeError if perf can't sample, or the streams ended too early."""
    first = {name: getattr(args, name) for name in ("model", "weights", "threads", "prompt_tokens", "output_tokens")}
    with Worker("bench.engine.decode_steps", threads=args.threads) as worker, tempfile.TemporaryDirectory() as folder:
        worker.ask({**first, "streams": streams})
        data = f"{folder}/perf.data"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_PER_SECOND), "-o", data]
        with subprocess.Popen([*record, "-p", str(worker.process.pid)]) as perf:
            steps, seconds = worker.ask(args.seconds)
            perf.terminate()
        if seconds < args.seconds or not Path(data).exists():
            raise RuntimeError("perf wrote nothing" if steps else "the streams ended early: raise --output-tokens")
        report = ["perf", "report", "-i", data, "--stdio", "--no-children", "--sort", "symbol"]
        text = subprocess.run(report, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    kinds, symbols = defaultdict[str, float](float), defaultdict[str, float](float)
    for percent, symbol in re.findall(r"^\s+([\d.]+)%\s+\[.\]\s+(.+?)\s*$", text, re.MULTILINE):
        name = re.sub(r"\(anonymous namespace\)::|tailrace::|\(.*", "", symbol)[:60]
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")
        kinds[kind] += float(percent) / 100
        symbols[name] += float(percent) / 100
    return Profile(kinds, symbols, seconds / max(1, steps) * 1e3)


if __name__ == "__main__":
    sys.exit(main())
