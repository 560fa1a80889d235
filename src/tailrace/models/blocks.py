"""Weights → blocks that csrc/quantized/pack.cpp reads: floats rounded by the package gguf, and codes of 4 and 8 bits as
they are. Part of convert_folder.py's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from tailrace.errors import ModelLoadError
from tailrace.models.tensors import FileTensor

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8", "I8": "i1", "U8": "u1"}
FLOATS = ("F64", "F32", "F16", "BF16")
BLOCK = 32
AT_ONCE = 1 << 20  # weights that are quantized at once: MXFP4 takes 64 bytes for each


def map_tensor(tensor: FileTensor) -> np.ndarray:
    """Return the tensor as the file has it, mapped into memory; BF16 as its bits."""
    if not tensor.size:
        return np.empty(tensor.shape, NUMPY.get(tensor.dtype, "u1"))
    shape = tensor.shape if tensor.dtype in NUMPY else (tensor.size,)
    return np.memmap(tensor.path, NUMPY.get(tensor.dtype, "u1"), "r", tensor.start, shape)


def widen_floats(tensor: FileTensor, values: np.ndarray) -> np.ndarray:
    """Return `values`, a part of a tensor of floats, in float32."""
    if tensor.dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def quantize_matrix(tensor: FileTensor, kind: GGMLQuantizationType) -> Iterator[memoryview]:
    """Yield the blocks of a matrix of floats, or of several matrices [E, N, K], row after row.

    Raises:
        ModelLoadError: a weight is not finite.
    """
    rows = map_tensor(tensor).reshape(-1, tensor.shape[-1])
    step = max(1, AT_ONCE // tensor.shape[-1])
    for first in range(0, len(rows), step):
        values = widen_floats(tensor, rows[first : first + step])
        if not np.isfinite(values).all():
            raise ModelLoadError(f"tensor {tensor.name} has a weight that is not finite, so it can't be quantized")
        with np.errstate(all="ignore"):
            yield np.ascontiguousarray(quantize(values, kind)).data.cast("B")


class Kind(NamedTuple):
    """A type of blocks of 32 weights on a grid. number: of csrc/quantized/pack.cpp; from 1000 on not GGUF's. A block is
    its scale, its zero point (a byte) if it has one, and its codes in the order of Q4_0 and Q8_0."""

    number: int
    name: str
    scale: str
    zero: bool

    def row_bytes(self, bits: int, width: int) -> int:
        return width // BLOCK * (np.dtype(self.scale).itemsize + self.zero + 4 * bits)


# bits of a code, scales are float16's, there are zero points
KINDS = {
    (4, True, False): Kind(2, "int4", "<f2", False),
    (4, True, True): Kind(1000, "int4 with zero points", "<f2", True),
    (4, False, False): Kind(1001, "int4 with float32 scales", "<f4", False),
    (4, False, True): Kind(1002, "int4 with float32 scales and zero points", "<f4", True),
    (8, True, False): Kind(8, "int8", "<f2", False),
    (8, False, False): Kind(1003, "int8 with float32 scales", "<f4", False),
}


def find_block_type(bits: int, zeros: np.ndarray, scales: np.ndarray) -> Kind | None:
    """Return the type of blocks that holds such a grid without rounding anything, or None. Scales of bfloat16 are
    float16's too unless they are tiny. Zero points are bytes."""
    if zeros.size and not 0 <= zeros.min() <= zeros.max() <= 255:
        return None
    with np.errstate(over="ignore"):
        half = bool((scales.astype(np.float16).astype(np.float32) == scales).all())
    return KINDS.get((bits, half, bool(bits and (zeros != 1 << bits >> 1).any())))


def grid_blocks(
    kind: Kind, bits: int, codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray
) -> Iterator[memoryview]:
    """Yield the blocks of codes [N, K], with zero points and scales [N, G], row after row."""
    blocks = codes.shape[1] // BLOCK
    repeats = blocks // scales.shape[1]
    for first in range(0, len(codes), max(1, AT_ONCE // codes.shape[1])):
        rows = slice(first, first + max(1, AT_ONCE // codes.shape[1]))
        factors = scales[rows].repeat(repeats, 1).astype(kind.scale)[:, :, None].view(np.uint8)
        parts: list[np.ndarray] = [factors]
        if kind.zero:
            parts.append(zeros[rows].repeat(repeats, 1).astype(np.uint8)[:, :, None])
        some = codes[rows].reshape(-1, blocks, BLOCK)
        parts.append(some ^ 128 if bits == 8 else some[:, :, :16] | some[:, :, 16:] << 4)
        yield np.ascontiguousarray(np.concatenate(parts, -1)).data.cast("B")


def row_bytes(kind: GGMLQuantizationType, width: int) -> int | None:
    """Return the bytes of a row of so many weights; None if they are not a whole number of blocks."""
    block, size = GGML_QUANT_SIZES[kind]
    return None if width % block else width // block * size
