"""Weights → blocks that csrc/quantized_pack.cpp reads: floats rounded by the package gguf. Part of convert_folder.py's
process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from tailrace.errors import ModelLoadError
from tailrace.models.tensors import FileTensor

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8", "I8": "i1", "U8": "u1"}
FLOATS = ("F64", "F32", "F16", "BF16")
AT_ONCE = 1 << 20  # weights that are quantised at once: MXFP4 takes 64 bytes for each


def array(tensor: FileTensor) -> np.ndarray:
    """The tensor as it lies in the file, mapped; BF16 as the bits."""
    if not tensor.size:
        return np.empty(tensor.shape, NUMPY.get(tensor.dtype, "u1"))
    shape = tensor.shape if tensor.dtype in NUMPY else (tensor.size,)
    return np.memmap(tensor.path, NUMPY.get(tensor.dtype, "u1"), "r", tensor.start, shape)


def floats(tensor: FileTensor, values: np.ndarray) -> np.ndarray:
    """`values`, a part of a tensor of floats, in float32."""
    if tensor.dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def quantised(tensor: FileTensor, kind: GGMLQuantizationType) -> Iterator[memoryview]:
    """The blocks of a matrix of floats, row after row.

    Raises:
        ModelLoadError: a weight is not finite.
    """
    rows = array(tensor)
    step = max(1, AT_ONCE // tensor.shape[1])
    for first in range(0, tensor.shape[0], step):
        values = floats(tensor, rows[first : first + step])
        if not np.isfinite(values).all():
            raise ModelLoadError(f"tensor {tensor.name} has a weight that is not finite, so it can't be quantised")
        with np.errstate(all="ignore"):
            yield memoryview(np.ascontiguousarray(quantize(values, kind))).cast("B")


def row_bytes(kind: GGMLQuantizationType, width: int) -> int | None:
    """Bytes of a row of so many weights; None if they are no whole blocks."""
    block, size = GGML_QUANT_SIZES[kind]
    return None if width % block else width // block * size
