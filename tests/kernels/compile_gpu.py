"""Compile every GPU kernel down to machine code for the GPUs named; needs none. Run by test_gpu_compiles.py, in a process of its own:
where kernels are interpreted they can't be compiled."""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tailrace.kernels.gpu import argmax, noise, sample, scan

LOGITS = ("*bf16", "*fp16", "*fp32")
NOISE = {"key": "i64", "position": "i64", "stream": "i32", "ids_ptr": "*i64", "n": "i32"}

# kernel, types of its arguments, its constants
KERNELS: list[tuple[Any, dict[str, str], dict[str, int]]] = [
    (noise.gumbel_kernel, NOISE | {"out_ptr": "*fp32"}, {"BLOCK": noise.BLOCK}),
    (noise.words_kernel, NOISE | {"out_ptr": "*i64"}, {"BLOCK": noise.BLOCK}),
    (
        noise.philox_kernel, {"key_ptr": "*i64", "counter_ptr": "*i64", "out_ptr": "*i64", "n": "i32"},
        {"BLOCK": noise.BLOCK},
    ),
    *(
        (
            argmax.best_of_part, {"logits": kind, "stride": "i64", "vocab": "i32", "blocks": "i32", "best": "*i64"},
            {"BLOCK": argmax.BLOCK},
        )
        for kind in LOGITS
    ),
    *(
        (
            scan.scan_rows,
            {"logits": kind, "stride": "i64", "vocab": "i32", "blocks": "i32", "source": "*i64", "slot": "*i64", "wants": "*i32",
             "scale": "*fp32", "keys": "*i32", "mass": "*fp32", "moments": "*fp32"},
            {"BLOCK": scan.BLOCK, "TILE": scan.TILE},
        )
        for kind in LOGITS
    ),
    (
        sample.pick,
        {"logits": "*bf16", "stride": "i64", "vocab": "i32", "blocks": "i32", "source": "*i64", "slot": "*i64", "position": "*i64",
         "keys": "*i32", "mass": "*fp32", "moments": "*fp32", "noise_key": "*i64", "greedy": "*i32", "wants": "*i32",
         "mass_temperature": "*fp64", "num_stages": "*i32", "kinds": "*i32", "ks": "*i32", "knobs": "*fp64", "max_stages": "i32",
         "x": "*fp32", "ids": "*i32", "found": "*i32", "token_ids": "*i64", "status": "*i32"},
        {"BLOCK": scan.BLOCK},
    ),
    (argmax.best_of_parts, {"best": "*i64", "parts": "i32", "ids": "*i64", "status": "*i32"}, {"PARTS": 32}),
]  # fmt: skip


def main() -> None:
    """Arguments: compute capabilities, as 90."""
    for arch in map(int, sys.argv[1:]):
        for kernel, types, constants in KERNELS:
            if kernel is sample.pick and arch != 90:  # half a minute each
                continue
            names = kernel.arg_names
            source = ASTSource(
                fn=kernel,
                signature={name: types.get(name, "constexpr") for name in names},
                constexprs={(names.index(name),): value for name, value in constants.items()},
            )
            assert triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm["cubin"]
            print(arch, kernel.__name__)


if __name__ == "__main__":
    main()
