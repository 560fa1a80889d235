"""Compare row-invariant linear layers on a GPU with F.linear (cuBLAS), on a cold cache.

    python -m bench.linear_gpu

The shapes are the projections of Llama models of 1.2 and 8 billion weights. GB/s count the weights, inputs and outputs
once, TFLOP/s two operations per weight and row. Ratio: cuBLAS's time / ours, above 1 we are faster. Host: µs until a
call of ours returns.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bench.lib.gpu_timing import Stopwatch
from bench.lib.harness import machine, table, write_json
from tailrace import kernels

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ROWS = (1, 8, 64, 256, 1024, 4096)
SHAPES = {  # (N, K) of merged projections, as runners/fuse.py has them
    "1b": {"qkv": (3072, 2048), "o": (2048, 2048), "gate, up": (16384, 2048), "down": (2048, 8192)},
    "8b": {"qkv": (6144, 4096), "o": (4096, 4096), "gate, up": (28672, 4096), "down": (4096, 14336)},
    "head": {"1b": (128256, 2048)},
}
CALLS = 200  # of the host's time


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.linear_gpu", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    if not torch.cuda.is_available():
        sys.exit("bench.linear_gpu: torch sees no GPU here")
    device = torch.device("cuda")
    watch = Stopwatch(device, args.rounds)
    lines: list[dict[str, Any]] = []
    for model in args.models:
        for layer, shape in SHAPES[model].items():
            weight = torch.randn(shape, device=device).to(DTYPES[args.dtype]) * shape[1] ** -0.5
            lines += [measured(f"{model} {layer}", weight, rows, watch) for rows in args.rows]
            print(table(lines[-len(args.rows) :]), flush=True)
    if args.json:
        gpu = torch.cuda.get_device_name(device)
        write_json(args.json, {"machine": machine(), "gpu": gpu, "dtype": args.dtype, "lines": lines})
    return 0


@torch.inference_mode()
def measured(name: str, weight: torch.Tensor, rows: int, watch: Stopwatch) -> dict[str, Any]:
    """One shape and number of rows."""
    features, depth = weight.shape
    x = torch.randn((rows, depth), device=weight.device).to(weight.dtype)
    packed = kernels.pack_linear(weight)
    times = watch.measure({"ours": lambda: kernels.linear(x, packed), "cublas": lambda: F.linear(x, weight)})
    ours, cublas = times["ours"].us, times["cublas"].us
    size = (features * depth + rows * (features + depth)) * weight.element_size()
    return {
        "layer": name,
        "N": features,
        "K": depth,
        "rows": rows,
        "ours µs": round(ours, 1),
        "cuBLAS µs": round(cublas, 1),
        "ratio": round(cublas / ours, 2),
        "ours GB/s": round(size / ours / 1e3),
        "ours TFLOP/s": round(2 * features * depth * rows / ours / 1e6, 1),
        "host µs": round(host_us(x, packed), 1),
    }


def host_us(x: torch.Tensor, packed: Any) -> float:
    """The host's part of a call of ours, while the device's queue has room."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        kernels.linear(x, packed)
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return took / CALLS * 1e6


if __name__ == "__main__":
    sys.exit(main())
