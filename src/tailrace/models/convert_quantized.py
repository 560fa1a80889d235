"""Finds in a GGUF file the blocks that a dequantised model's weights came from, and puts them in the weights' place.

Which tensor became which parameter, and in which order of rows (Llama's queries and keys are stored in another one), is
the knowledge of transformers, whose loader dequantises. Here it is found by value: rows are compared by hashes of their
entries, then all entries. So a matrix is either found with its blocks, whose values are the parameter's bit for bit, or
stays dequantised. Imports torch; part of convert.py's process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from torch import nn

from tailrace import _cpu

METHOD = "tailrace"  # as runners/quantized.py and footprint.py have it
TYPES = {number for number, _, _ in _cpu.quantized_types()}
FLOATS = ("F32", "F16", "BF16", "F64")


def keep_blocks(model: Any, source: Path, say: Callable[[str, str], None]) -> None:
    """Replace every weight of a linear layer or an embedding that is made of one tensor's blocks by these, as uint8
    [N, bytes of a row], and note them in the model's config (runners/quantized.py)."""
    modules, dtype = owners(model), model.dtype
    became = f"became {str(dtype).removeprefix('torch.')}"
    tensors, left = candidates(GGUFReader(source), {tuple(parameter.shape) for _, parameter, _ in modules}, dtype)
    types: dict[str, int] = {}
    shapes: dict[str, list[int]] = {}
    packed_bytes, used = 0, set()
    for name, parameter, sharing in modules:
        key = tuple(parameter.shape), key_of(row_hashes(parameter.detach()))
        raw = blocks_of(tensors[key], parameter.detach()) if key in tensors else None
        if raw is None:
            continue
        used.add(key)
        types[name], shapes[name] = int(tensors[key].tensor_type), list(raw.shape)
        packed_bytes += _cpu.quantized_bytes(types[name], *parameter.shape)
        blocks = nn.Parameter(raw, requires_grad=False)
        for module in sharing:
            module.weight = blocks
        say("stage", f"keeping blocks: {len(types)}")
    # of other modules, or changed on the way
    left.update(tensor.tensor_type.name for key, tensor in tensors.items() if key not in used)
    model.config.quantization_config = {
        "quant_method": METHOD,
        "types": types,
        "shapes": shapes,
        "names": {str(number): GGMLQuantizationType(number).name for number in set(types.values())},
        "left": {f"of {kind} {became}": count for kind, count in left.items()},
        "raw_bytes": sum(rows * size for rows, size in shapes.values()),
        "packed_bytes": packed_bytes,
    }


Key = tuple[tuple[int, ...], int]  # shape, and key_of its rows


def candidates(reader: Any, wanted: set[tuple[int, ...]], dtype: torch.dtype) -> tuple[dict[Key, Any], Counter[str]]:
    """The file's tensors of blocks that have a wanted shape and a kernel; how many others there are of each type."""
    tensors: dict[Key, Any] = {}
    left: Counter[str] = Counter()
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
        if tensor.tensor_type.name in FLOATS or len(shape) < 2:
            continue
        if int(tensor.tensor_type) in TYPES and shape in wanted:
            tensors[shape, key_of(row_hashes(values_of(tensor, dtype)))] = tensor
        else:
            left[tensor.tensor_type.name] += 1
    return tensors, left


def owners(model: nn.Module) -> list[tuple[str, nn.Parameter, list[Any]]]:
    """Every matrix that only linear layers and embeddings own: (first name, the parameter, the modules)."""
    found: dict[int, tuple[str, nn.Parameter, list[Any]]] = {}
    others: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if type(module) not in (nn.Linear, nn.Embedding) or name != "weight":
                others.add(id(parameter))
            else:
                found.setdefault(id(parameter), (f"{path}.{name}", parameter, []))[2].append(module)
    return [entry for number, entry in found.items() if number not in others]


def values_of(tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    """The tensor's values [N, K], rounded once to dtype."""
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)).to(dtype)


def row_hashes(values: torch.Tensor) -> np.ndarray:
    """A hash of every row of [N, K]: its bits times random odd numbers, modulo 2⁶⁴."""
    bits = values.contiguous().view(torch.int16 if values.dtype == torch.bfloat16 else torch.int32).numpy()
    factors = np.random.default_rng(0).integers(-(2**63), 2**63, bits.shape[1], np.int64) | 1
    hashes = np.empty(len(bits), np.int64)
    with np.errstate(over="ignore"):
        for start in range(0, len(bits), 4096):
            hashes[start : start + 4096] = (bits[start : start + 4096].astype(np.int64) * factors).sum(1)
    return hashes


def key_of(hashes: np.ndarray) -> int:
    """A hash of a matrix that does not depend on the order of its rows."""
    with np.errstate(over="ignore"):
        return int((hashes * (hashes | 1)).sum())


def blocks_of(tensor: Any, values: torch.Tensor) -> torch.Tensor | None:
    """The tensor's blocks, [N, bytes of a row], with rows in the order of `values`; None if they are not its rows."""
    own = values_of(tensor, values.dtype)
    order = np.empty(len(values), np.int64)
    order[np.argsort(row_hashes(values), kind="stable")] = np.argsort(row_hashes(own), kind="stable")
    if not torch.equal(own[torch.from_numpy(order)], values):
        return None
    raw = np.ascontiguousarray(tensor.data.reshape(len(values), -1).view(np.uint8))
    return torch.from_numpy(raw[order])
