"""Compare each kernel with torch doing the same work, in turns in the same run.

The shapes are the default model's (SmolLM2-135M: 576 wide, 9 query and 3 KV heads of 64, vocabulary 49,152) and a
vocabulary of 128,256. The linear layers are those of a whole forward pass, 30 layers of different weights, so that
weights do not stay in the cache. Attention is also compared with itself over KV caches in eight bits. Prints medians
and ratios (torch / ours: above 1 we are faster).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from tailrace import kernels

WIDTH, INNER, VOCAB, LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 576, 1536, 49152, 30, 9, 3, 64, 16
KV_CODES = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True)
class KernelCase:
    """One measurement: the same work by us and by each baseline."""

    name: str
    ours: Callable[[], object]
    baselines: dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Result:
    """Medians in microseconds; ratio is baseline / ours."""

    name: str
    ours_us: float
    baseline: str
    baseline_us: float
    ratio: float


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float32).mul_(0.5).to(dtype)


# ---- cases


def linear_cases() -> Iterator[KernelCase]:
    """A forward's projections: per layer merged QKV, output, merged gate and up, down; then the head."""
    shapes = [(WIDTH + 2 * KV_HEADS * HEAD_DIM, WIDTH), (WIDTH, WIDTH), (2 * INNER, WIDTH), (WIDTH, INNER)] * LAYERS
    weights = [random(n, k) for n, k in [*shapes, (VOCAB, WIDTH)]]
    packed = [kernels.pack_linear(w) for w in weights]
    for rows in (1, 2, 8, 32, 128, 512):
        sizes = [min(rows, 32) if len(w) == VOCAB else rows for w in weights]
        onednn = [torch.ops.mkldnn._reorder_linear_weight(w, m) for w, m in zip(weights, sizes, strict=True)]
        inputs = {k: random(rows, k) for k in (WIDTH, INNER)}
        last = inputs[WIDTH][-min(rows, 32) :]  # the head sees wanted positions only

        def x(w: torch.Tensor, inputs: dict[int, torch.Tensor] = inputs, last: torch.Tensor = last) -> torch.Tensor:
            return last if w.shape[0] == VOCAB else inputs[w.shape[1]]

        def ours(x: Callable[[torch.Tensor], torch.Tensor] = x) -> None:
            for w, p in zip(weights, packed, strict=True):
                kernels.linear(x(w), p)

        def plain(x: Callable[[torch.Tensor], torch.Tensor] = x) -> None:
            for w in weights:
                F.linear(x(w), w)

        def reordered(x: Callable[[torch.Tensor], torch.Tensor] = x, onednn: list[torch.Tensor] = onednn) -> None:
            for w, o in zip(weights, onednn, strict=True):
                torch.ops.mkldnn._linear_pointwise(x(w), o, None, "none", [], "")

        yield KernelCase(f"linear, whole forward, {rows} rows", ours, {"F.linear": plain, "oneDNN packed": reordered})


def caches(
    lengths: list[int],
) -> tuple[list[kernels.KVCache], torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Filled paged caches, of bfloat16 and of every code, their block tables, and the same keys and values as plain
    tensors [Hkv, length, D]."""
    width = max(-(-length // BLOCK) for length in lengths)
    tables = torch.randperm(width * len(lengths), dtype=torch.int32).view(len(lengths), width)
    shape = (width * len(lengths), KV_HEADS, BLOCK, HEAD_DIM, torch.bfloat16)
    filled = [kernels.make_cache(*shape), *(kernels.make_quantized_cache(*shape, code) for code in KV_CODES)]
    plain = []
    for i, length in enumerate(lengths):
        key, value = random(length, KV_HEADS, HEAD_DIM), random(length, KV_HEADS, HEAD_DIM)
        at = torch.arange(length)
        for cache in filled:
            kernels.store_kv(cache, key, value, tables[i].long()[at // BLOCK] * BLOCK + at % BLOCK)
        plain.append((key.transpose(0, 1).contiguous(), value.transpose(0, 1).contiguous()))
    return filled, tables, plain


def in_eight_bits(
    filled: list[kernels.KVCache], attend: Callable[[kernels.KVCache], torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """The same attention over the caches with codes."""
    return {f"ours, {code}": partial(attend, cache) for code, cache in zip(KV_CODES.values(), filled[1:], strict=True)}


def padded(plain: list[tuple[torch.Tensor, torch.Tensor]], lengths: list[int]) -> tuple[torch.Tensor, ...]:
    """Keys and values [N, Hkv, longest, D] padded on the left, as a batched cache holds them, and the mask."""
    longest = max(lengths)
    key = torch.stack([F.pad(k, (0, 0, longest - n, 0)) for (k, _), n in zip(plain, lengths, strict=True)])
    value = torch.stack([F.pad(v, (0, 0, longest - n, 0)) for (_, v), n in zip(plain, lengths, strict=True)])
    mask = torch.arange(longest)[None] >= longest - torch.tensor(lengths)[:, None]
    return key, value, mask[:, None, None]


def decode_case(name: str, lengths: list[int]) -> KernelCase:
    filled, tables, plain = caches(lengths)
    query = random(len(lengths), HEADS, HEAD_DIM)
    start, kv_len = torch.arange(len(lengths) + 1, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    scale = 1 / math.sqrt(HEAD_DIM)
    key, value, mask = padded(plain, lengths)
    same = len(set(lengths)) == 1

    def batched() -> torch.Tensor:
        wanted = None if same else mask
        return F.scaled_dot_product_attention(query[:, :, None], key, value, wanted, scale=scale, enable_gqa=True)

    def repeated() -> torch.Tensor:  # what transformers does on the CPU: KV heads repeated, then the kernel
        group = HEADS // KV_HEADS
        wanted = None if same else mask
        wide = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(query[:, :, None], *wide, wanted, scale=scale)

    def alone() -> list[torch.Tensor]:
        return [
            F.scaled_dot_product_attention(query[i, :, None][None], k[None], v[None], scale=scale, enable_gqa=True)
            for i, (k, v) in enumerate(plain)
        ]

    def ours(cache: kernels.KVCache) -> torch.Tensor:
        return kernels.paged_attention(query, cache, tables, start, kv_len, scale=scale)

    baselines: dict[str, Callable[[], object]] = {"SDPA, padded batch": batched, "SDPA, repeated KV": repeated}
    baselines |= {} if len(lengths) == 1 else {"SDPA, one by one": alone}
    return KernelCase(name, partial(ours, filled[0]), baselines | in_eight_bits(filled, ours))


def prefill_case(name: str, chunk: int, length: int) -> KernelCase:
    filled, tables, [(key, value)] = caches([length])
    query = random(chunk, HEADS, HEAD_DIM)
    start, kv_len = torch.tensor([0, chunk], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    mask = torch.ones(chunk, length, dtype=torch.bool).tril(length - chunk)
    wide = query.transpose(0, 1).contiguous()[None]

    def torch_sdpa() -> torch.Tensor:
        causal = chunk == length
        return F.scaled_dot_product_attention(
            wide, key[None], value[None], None if causal else mask, is_causal=causal, enable_gqa=True
        )

    def ours(cache: kernels.KVCache) -> torch.Tensor:
        return kernels.paged_attention(query, cache, tables, start, kv_len, scale=1 / math.sqrt(HEAD_DIM))

    return KernelCase(name, partial(ours, filled[0]), {"SDPA": torch_sdpa} | in_eight_bits(filled, ours))


def attention_cases() -> Iterator[KernelCase]:
    generator = torch.Generator().manual_seed(1)
    ragged = torch.randint(100, 600, (32,), generator=generator).tolist()
    yield decode_case("attention, decode, 32 × 100-600", ragged)
    yield decode_case("attention, decode, 8 × 300", [300] * 8)
    yield decode_case("attention, decode, 1 × 100", [100])
    yield decode_case("attention, decode, 1 × 600", [600])
    yield decode_case("attention, decode, 1 × 8000", [8000])
    yield prefill_case("attention, prefill, 512 of 512", 512, 512)
    yield prefill_case("attention, prefill, 512 of 4096", 512, 4096)


def argmax_cases() -> Iterator[KernelCase]:
    for rows, vocab, dtype in ((1, VOCAB, torch.bfloat16), (32, VOCAB, torch.bfloat16), (32, 128256, torch.float32)):
        logits = random(rows, vocab, dtype=dtype)
        name = f"argmax, {rows} × {vocab}, {str(dtype).removeprefix('torch.')}"
        torch_argmax: dict[str, Callable[[], object]] = {"torch": lambda logits=logits: logits.argmax(-1)}
        yield KernelCase(name, lambda logits=logits: kernels.argmax(logits), torch_argmax)


def small_cases() -> Iterator[KernelCase]:
    """Baselines are the lines of transformers' Llama."""
    for rows in (1, 32, 512):
        x, delta, weight = random(rows, WIDTH), random(rows, WIDTH) * 0, random(WIDTH)
        gate_up = random(rows, 2 * INNER)
        query = random(rows, HEADS, HEAD_DIM)
        angle = torch.rand(rows, HEAD_DIM // 2).repeat(1, 2) * 6
        cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()

        def norm(x: torch.Tensor = x, weight: torch.Tensor = weight) -> torch.Tensor:
            wide = x.float()
            return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

        def add_norm(x: torch.Tensor = x, delta: torch.Tensor = delta, norm: Callable = norm) -> torch.Tensor:
            return norm(x + delta)

        def turn(q: torch.Tensor = query, cos: torch.Tensor = cos, sin: torch.Tensor = sin) -> torch.Tensor:
            half = HEAD_DIM // 2
            return q * cos[:, None] + torch.cat((-q[..., half:], q[..., :half]), -1) * sin[:, None]

        def gate(x: torch.Tensor = gate_up) -> torch.Tensor:
            a, b = x.chunk(2, -1)
            return F.silu(a) * b

        yield KernelCase(f"rms_norm, {rows} rows", lambda x=x, w=weight: kernels.rms_norm(x, w, 1e-5), {"torch": norm})
        yield KernelCase(
            f"add_rms_norm, {rows} rows",
            lambda x=x, d=delta, w=weight: kernels.add_rms_norm(x, d, w, 1e-5),
            {"torch": add_norm},
        )
        yield KernelCase(f"rotary, {rows} rows", lambda q=query, c=cos, s=sin: kernels.rotary(q, c, s), {"torch": turn})
        yield KernelCase(f"silu_mul, {rows} rows", lambda x=gate_up: kernels.silu_mul(x), {"torch": gate})


GROUPS = {"linear": linear_cases, "attention": attention_cases, "argmax": argmax_cases, "small": small_cases}


# ---- measuring

# libgomp's threads spin for milliseconds after torch's parallel regions, and would take half of our cores.
SETTLE_S = 0.02


def measure(case: KernelCase, seconds: float) -> list[Result]:
    """Medians over rounds in which ours and every baseline take turns, so that noise affects all of them alike."""
    runs = {"": case.ours, **case.baselines}
    loops = {}
    for name, run in runs.items():
        run()
        begin = time.perf_counter()
        run()
        loops[name] = max(1, int(0.002 / (time.perf_counter() - begin)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[""]) < 5:
        for name, run in runs.items():
            time.sleep(SETTLE_S)
            run()
            begin = time.perf_counter()
            for _ in range(loops[name]):
                run()
            times[name].append((time.perf_counter() - begin) / loops[name] * 1e6)
    median = {name: statistics.median(values) for name, values in times.items()}
    return [Result(case.name, median[""], name, median[name], median[name] / median[""]) for name in case.baselines]


def main(argv: list[str] | None = None) -> int:
    """Run the chosen groups; print a table; write JSON if asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--only", choices=sorted(GROUPS), action="append", help="a group of cases (default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="for torch and for us")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time per case")
    parser.add_argument("--json", type=Path, help="write the results here too")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    kernels.set_num_threads(args.threads)
    results: list[Result] = []
    print(f"{'case':<40}{'ours µs':>12}  {'baseline':<20}{'µs':>12}{'ratio':>8}")
    with torch.inference_mode():
        for group in args.only or GROUPS:
            for case in GROUPS[group]():
                for result in measure(case, args.seconds):
                    results.append(result)
                    print(
                        f"{result.name:<40}{result.ours_us:>12.1f}  {result.baseline:<20}"
                        f"{result.baseline_us:>12.1f}{result.ratio:>8.2f}",
                        flush=True,
                    )
    if args.json:
        args.json.write_text(json.dumps({"threads": args.threads, "results": [asdict(r) for r in results]}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
