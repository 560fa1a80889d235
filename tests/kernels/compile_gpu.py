"""Compile every GPU kernel down to machine code for the GPUs named; needs none. Run by test_gpu_compiles.py, in a
process of its own: where kernels are interpreted they can't be compiled."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tailrace.kernels.gpu import (
    activation,
    agreements,
    argmax,
    attention,
    edits,
    guidance,
    head,
    linear,
    logprobs,
    noise,
    norm,
    products,
    propose,
    reduced,
    rotary,
    sample,
    scan,
    scans,
    survivors,
    verify,
)
from tailrace.kernels.gpu.convolution_kernel import convolve_rows
from tailrace.kernels.gpu.noise import UNFUSED
from tailrace.kernels.gpu.recurrence_kernels import walk_channels, walk_heads
from tailrace.kernels.gpu.state import Tables
from tailrace.kernels.gpu.step import SCANS, WARPS, GPUStep, Out, Work

LOGITS = ("*bf16", "*fp16", "*fp32")
NOISE = {"key": "i64", "position": "i64", "stream": "i32", "ids_ptr": "*i64", "n": "i32"}

I32, I64, F32 = "i32", "*i64", "*fp32"
TABLES = Tables(I64, I32, "*i32", "*i32", I64, F32)
WORK = Work("*i32", "*i32", F32, I32, F32, "*i32", "*i32", I64, I64, I64, "*i32")
OUT = Out(I64, I64, I64, I64, I64, "*fp64", "*i32")


def step_of(kind: str) -> GPUStep:
    """With logits of this type."""
    return GPUStep(kind, "i64", I32, I64, I32, "*i32")


STEP = {"step": step_of("*bf16"), "tables": TABLES, "work": WORK, "blocks": I32}


def paged(kind: str, dim: int, value_dim: int, capped: bool) -> list[tuple[Any, dict[str, str], dict[str, int]]]:
    """The kernels of paged attention: 32 query heads, 8 KV heads, blocks of 16."""
    integers = (
        "query_t",
        "query_h",
        "key_t",
        "key_h",
        "value_t",
        "value_h",
        "selected_t",
        "selected_h",
        "table_stride",
        "tiles",
        "most",
        "place_stride",
        "chunks",
        "sequences",
        "few",
        "window",
        "reach",
        "capacity",
    )
    types = dict.fromkeys(("query", "key", "value", "keys", "values", "out"), kind) | dict.fromkeys(integers, "i32")
    types |= dict.fromkeys(("tables", "query_start", "kv_len"), "*i32") | {"slots": "*i64", "selected": "*i64"}
    types |= {"scale": "fp32", "softcap": "fp32", "sinks": "*fp32"} | dict.fromkeys(
        ("tops", "masses", "mixtures"), "*fp32"
    )
    size = 4 if kind == "*fp32" else 2
    values = {"VALUE_DIM": value_dim, "VALUE_PAD": attention.padded(value_dim)}
    shape = {"HEADS": 8, "SIZE": 16, "DIM": dim, "DIM_PAD": attention.padded(dim)} | values
    whole = shape | {"CAPPED": capped, "SELECTED": capped, "GROUP": 4, "BLOCK": attention.block_of(dim, size)}
    found = [
        (attention.store_rows, shape | {"HEADS_PAD": 8}),
        (attention.attend_chunks, whole | {"ROWS": attention.FEW_ROWS}),
        (attention.join, values | {"SINKS": capped}),
        (attention.attend_tiles, whole | {"ROWS": attention.ROW_BYTES // size, "SINKS": capped, "CHUNKED": False}),
        (attention.attend_tiles, whole | {"ROWS": attention.FEW_ROWS, "SINKS": capped, "CHUNKED": True}),
    ]
    return [(kernel, {k: types[k] for k in kernel.arg_names if k in types}, constants) for kernel, constants in found]


def linears(
    kind: str, tile: linear.Tile, partial: bool, even: bool = True
) -> tuple[Any, dict[str, str], dict[str, int]]:
    """A tile of a linear layer whose depth is cut into parts."""
    types = dict.fromkeys(("x", "weight", "bias", "out"), kind) | {"work": F32 if partial else kind}
    types |= dict.fromkeys(
        ("tokens", "features", "depth", "units", "splits", "x_stride", "w_n", "out_stride", "depth"), "i32"
    )
    sizes = {"BN": tile.features, "BT": tile.tokens, "BK": tile.depth, "GROUP": 8, "w_k": 1}
    return linear.multiply, types, sizes | {"BIAS": not partial, "PARTIAL": partial, "WHOLE": False, "EVEN": even}


def of_rows(kind: str) -> list[tuple[Any, dict[str, str], dict[str, int]]]:
    """Norms, sums, rotary embedding and gates: rows of 2048, heads of 128."""
    types = dict.fromkeys(("x", "delta", "weight", "out", "gate_up", "cos", "sin"), kind) | {"eps": "fp32"}
    numbers = ("rows", "inner", "dim", "outer_stride", "inner_stride", "stride")
    types |= dict.fromkeys((*numbers, "token_stride", "head_stride", "cos_stride"), I32) | {"divisor": "fp32"}
    found: list[tuple[Any, dict[str, int]]] = [
        (norm.rows_normed, {"PLUS_ONE": plus_one, "ADD": not plus_one, "ROWS": 1, "BLOCK": 2048})
        for plus_one in (False, True)
    ]
    found += [
        (reduced.rows_summed, {"SQUARED": True, "ROWS": 1, "BLOCK": 2048}),
        (rotary.turn, {"HEADS": 40, "HALF": 64, "HEADS_PAD": 64, "HALF_PAD": 64}),
        (activation.gated, {"BLOCK": activation.BLOCK}),
    ]
    return [(kernel, {k: types[k] for k in kernel.arg_names if k in types}, constants) for kernel, constants in found]


def of_many(kind: str, tile: linear.Tile) -> list[tuple[Any, dict[str, str], dict[str, int]]]:
    """Products of pairs and of groups."""
    sizes = {"BN": tile.features, "BT": tile.tokens, "BK": tile.depth, "EVEN": True}
    types = dict.fromkeys(("a", "b", "x", "weight", "bias", "out"), kind) | {"starts": I64}
    strides = ("a_batch", "a_m", "b_batch", "b_n", "x_stride", "w_group", "w_n", "out_stride")
    types |= dict.fromkeys(("m", "n", "depth", "groups", "features", *strides), I32)
    found = [
        (products.multiply_pairs, sizes | {"b_k": 1}),
        (products.multiply_groups, sizes | {"w_k": 1, "BIAS": True, "GROUPS": 128}),
    ]
    return [(kernel, {k: types[k] for k in kernel.arg_names if k in types}, constants) for kernel, constants in found]


def walking(kind: str) -> list[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Scans along sequences: heads as in Qwen3.5 (128 × 128), Kimi (a decay per row), Mamba 2 (128 × 64) and
    Falcon-H1 (256 × 64), odd ones, Mamba's 16 states per channel, filters of 4 and 3 tokens."""
    types = dict.fromkeys(("query", "key", "value", "x", "b", "c", "weight", "bias"), kind) | {"scale": "fp32"}
    types |= dict.fromkeys(("decay", "factor", "skip", "step", "rate"), F32)
    types |= {"starts": "*i32", "ends": "*i32", "slots": I64}
    flags, found = ("DELTA", "NORMALIZE", "PER_ROW", "SKIP"), []
    for *given, chosen in (
        (32, 2, 128, 128, (True, True, False, False)),
        (32, 1, 128, 128, (True, True, True, False)),
        (64, 64, 128, 64, (False, False, False, True)),
        (24, 24, 256, 64, (False, False, False, True)),
        (3, 3, 7, 37, (True, True, False, True)),
    ):
        tile = scans.choose_tile(*given[2:], scans.HELD)
        numbers = dict(zip(("HEADS", "GROUP", "KEY_DIM", "VALUE_DIM"), given, strict=True))
        numbers |= dict(zip(flags, chosen, strict=True)) | {"KEY_PAD": tile.rows, "COLUMNS": tile.columns}
        found.append((walk_heads, {"memory": F32, "out": kind}, numbers))
    tile = scans.choose_tile(16, 8192, scans.CHANNELS_HELD)
    sizes = {"CHANNELS": 8192, "STATES": 16, "STATES_PAD": tile.rows, "BLOCK": tile.columns}
    found.append((walk_channels, {"memory": F32, "out": F32}, sizes))
    for width, pad in ((4, 4), (3, 2)):
        sizes = {"CHANNELS": 8192, "WIDTH": width, "WIDTH_PAD": pad, "BIAS": width == 4, "SILU": width == 4}
        sizes |= {"TOKENS": scans.TOKENS, "BLOCK": scans.BLOCK}
        found.append((convolve_rows, {"memory": kind, "out": kind}, sizes))
    return [
        (kernel, {k: (types | more).get(k, I32) for k in kernel.arg_names if k not in constants}, constants)
        for kernel, more, constants in found
    ]


# kernel, types of its arguments, its constants
KERNELS: list[tuple[Any, dict[str, str], dict[str, int]]] = [
    (noise.gumbel_kernel, NOISE | {"out_ptr": "*fp32"}, {"BLOCK": noise.BLOCK}),
    (noise.words_kernel, NOISE | {"out_ptr": "*i64"}, {"BLOCK": noise.BLOCK}),
    (
        noise.philox_kernel,
        {"key_ptr": "*i64", "counter_ptr": "*i64", "out_ptr": "*i64", "n": "i32"},
        {"BLOCK": noise.BLOCK},
    ),
    *(
        (
            argmax.best_of_part,
            {"logits": kind, "stride": "i64", "vocab": "i32", "blocks": "i32", "best": "*i64"},
            {"BLOCK": argmax.BLOCK},
        )
        for kind in LOGITS
    ),
    *(
        (
            scan.scan_rows,
            STEP | {"step": step_of(kind)},
            {"MORE": more, "TILE": SCANS[more][0]},
        )
        for kind in LOGITS
        for more in SCANS
    ),
    (
        edits.amend,
        {"tables": TABLES, "amendments": I64, "n": I32, "vocab": I32, "tallies": I32, "shifts": I32},
        {"BLOCK": edits.BLOCK},
    ),
    (
        agreements.compare_places,
        {"tokens": I64, "stride": I32, "lengths": I64, "most": I64, "found": "*i32"},
        {"BLOCK": agreements.BLOCK},
    ),
    (sample.sample_rows, STEP, {}),
    (verify.verify_rows, {**STEP, "out": OUT, "width": I32}, {}),
    *((kernel, {**STEP, "masses": I64}, {}) for kernel in (propose.fill_proposals, propose.propose_rows)),
    (survivors.survivors_of_rows, {**STEP, "out": OUT, "width": I32}, {}),
    (logprobs.logprobs_of_rows, {**STEP, "out": OUT, "width": I32, "top": I32}, {}),
    (
        guidance.combine,
        {"logits": "*bf16", "stride": "i64", "own": I64, "companion": I64, "scale": F32, "out": F32, "vocab": I32},
        {"BLOCK": guidance.BLOCK},
    ),
    (
        head.best_of_tiles,
        {
            "hidden": "*bf16",
            "weight": "*bf16",
            "keys": I64,
            "positions": I64,
            "temperatures": "*fp64",
            "score": "*fp64",
            "token": "*i32",
            "largest": "*i32",
            "rows": I32,
            "vocab": I32,
            "width": I32,
            "hidden_stride": "i64",
            "weight_stride": "i64",
        },
        {"ROWS": head.ROWS, "IDS": head.IDS, "DEPTH": head.DEPTH},
    ),
    (
        head.best_of_all,
        {"score": "*fp64", "token": "*i32", "largest": "*i32", "ids": I64, "status": "*i32", "rows": I32, "tiles": I32},
        {"CHUNK": 1024},
    ),
    *paged("*bf16", 128, 128, False),
    *paged("*bf16", 192, 128, True),
    *paged("*fp32", 20, 20, True),
    *(linears("*bf16", tile, tile.tokens < 128) for tile in linear.HALF),
    linears("*fp16", linear.HALF[-1], True, even=False),
    *(linears("*fp32", tile, False) for tile in linear.SINGLE),
    (
        linear.add_splits,
        dict.fromkeys(("work", "bias", "out"), F32)
        | dict.fromkeys(("tokens", "features", "splits", "out_stride"), "i32"),
        {"BIAS": True, "BLOCK": linear.JOINED},
    ),
    *of_rows("*bf16"),
    *of_many("*bf16", linear.HALF[-1]),
    *walking("*bf16"),
    *walking(F32),
    (argmax.best_of_parts, {"best": "*i64", "parts": "i32", "ids": "*i64", "status": "*i32"}, {"PARTS": 32}),
]


WALKS = (walk_heads, walk_channels, convolve_rows)
WIDE = (sample.sample_rows, verify.verify_rows, logprobs.logprobs_of_rows)  # a program per row
FUSED = {  # rooms whose launches leave the compiler its own way
    *("agreements", "attention_kernels", "argmax", "edits", "linear_kernels"),
    *("norm", "products", "reduced", "rotary", "activation"),
}
EVEN = {  # multiples of 16, in life
    *("stride", "vocab", "padded", "plane", "hidden_stride", "weight_stride", "width"),
    *("x_stride", "w_n", "out_stride", "depth"),
    *("dim", "outer_stride", "inner_stride", "token_stride", "head_stride", "cos_stride"),
    *("a_batch", "a_m", "b_batch", "b_n", "w_group"),
}


def options(kernel: Any, constants: dict[str, int]) -> dict[str, Any]:
    """As launches have them."""
    found: dict[str, Any] = {} if kernel.__module__.rpartition(".")[2] in FUSED else dict(UNFUSED)
    if kernel is scan.scan_rows:
        found["num_warps"] = SCANS[bool(constants["MORE"])][1]
    elif "BK" in constants:
        sizes = tuple(constants[name] for name in ("BN", "BT", "BK"))
        tile = next(tile for tile in linear.MULTIPLY if tile[:3] == sizes)
        found |= linear.MULTIPLY[tile].options
    elif kernel in (*WIDE, survivors.survivors_of_rows, propose.fill_proposals, propose.propose_rows):
        found["num_warps"] = WARPS
    elif kernel in WALKS:
        warps = 4 if kernel is convolve_rows else 1
        found = dict(scans.get_launcher(kernel, warps).options)
    return found


def aligned(kernel: Any, types: dict[str, Any]) -> dict[tuple[int, ...], list[list[Any]]]:
    """Which arguments are multiples of 16: addresses, and some numbers; also those within a tuple. A kernel of scans
    knows of its memory alone."""
    found: dict[tuple[int, ...], list[list[Any]]] = {}
    unknown = kernel.do_not_specialize if kernel in WALKS else ()
    for i, name in enumerate(kernel.arg_names):
        if name in unknown:
            continue
        parts = types.get(name, "constexpr")
        fields = (
            {(i,): (name, parts)}
            if isinstance(parts, str)
            else {(i, j): (field, part) for j, (field, part) in enumerate(zip(parts._fields, parts, strict=True))}
        )
        for place, (field, part) in fields.items():
            if part.startswith("*") or field in EVEN:
                found[place] = [["tt.divisibility", 16]]
    return found


def count_spilled(machine_code: bytes) -> int:
    """Return the bytes per thread that do not fit into registers, by the tool that Triton brings."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        done = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    return sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", done.stdout)))


def main() -> None:
    """Arguments: compute capabilities, as 90; after "small", without the kernels of WIDE: half a minute each for all
    that arithmetic."""
    small = sys.argv[1] == "small"
    for arch in map(int, sys.argv[1 + small :]):
        for kernel, types, constants in KERNELS:
            if kernel in WIDE and (small or arch != 90):
                continue
            names = kernel.arg_names
            source = ASTSource(
                fn=kernel,
                signature={name: types.get(name, "constexpr") for name in names},
                constexprs={(names.index(name),): value for name, value in constants.items()},
                attrs=aligned(kernel, types),
            )
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options(kernel, constants))
            assert made.asm["cubin"]
            assert kernel not in WALKS or count_spilled(made.asm["cubin"]) == 0, (kernel.__name__, constants)
            print(arch, kernel.__name__)


if __name__ == "__main__":
    main()
