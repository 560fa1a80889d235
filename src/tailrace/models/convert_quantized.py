"""Finds in a GGUF file the blocks that dequantised weights came from, and puts them in the weights' place.

Which tensor became which parameter, and in which order of rows (Llama's queries and keys are stored in another one), is
the knowledge of transformers, whose loader dequantises. Here it is found by value: rows are compared by hashes of their
entries, then all entries. So a matrix is either found with its blocks, whose values are the parameter's bit for bit, or
stays dequantised. Imports torch; part of convert.py's process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from torch import nn

from tailrace import _cpu

METHOD = "tailrace"  # as runners/quantized.py and footprint.py have it
TYPES = {number for number, _, _ in _cpu.quantized_types()}
FLOATS = ("F32", "F16", "BF16", "F64")
AT_ONCE = 1 << 20  # entries that are hashed; they are widened to eight bytes


class KeptBlocks:
    """Which of a model's matrices are made of one tensor's blocks. types: the matrix's name → the type of its blocks,
    shapes: their raw shape; left: tensors of blocks that became numbers, by type. A matrix is the weight of linear
    layers and embeddings alone; of the names that it has in the model, the first counts."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.owned = {name for name, _, _ in owners(model)}
        self.types: dict[str, int] = {}
        self.shapes: dict[str, list[int]] = {}
        self.left: Counter[str] = Counter()
        self.packed_bytes = 0

    def put(self, tensors: Iterable[Any], values: dict[str, torch.Tensor]) -> None:
        """Put blocks in the place of values where they are the same. tensors: of the file, those that the values came
        from; values: by name. The blocks are uint8 [N, bytes of a row]."""
        matrices = {name: value for name, value in values.items() if name in self.owned}
        found, left = candidates(tensors, {tuple(value.shape) for value in matrices.values()}, self.dtype)
        used = set()
        for name, value in matrices.items():
            hashes = row_hashes(value)
            key = tuple(value.shape), key_of(hashes)
            raw = blocks_of(found[key], value, hashes) if key in found else None
            if raw is None:
                continue
            used.add(key)
            self.types[name], self.shapes[name] = int(found[key].tensor.tensor_type), list(raw.shape)
            self.packed_bytes += _cpu.quantized_bytes(self.types[name], *value.shape)
            values[name] = raw
        # of other modules, or changed on the way
        self.left.update(left)
        self.left.update(one.tensor.tensor_type.name for key, one in found.items() if key not in used)

    def settings(self) -> dict[str, Any]:
        """The `quantization_config` that runners/quantizer.py reads."""
        became = f"became {str(self.dtype).removeprefix('torch.')}"
        return {
            "quant_method": METHOD,
            "types": self.types,
            "shapes": self.shapes,
            "names": {str(number): GGMLQuantizationType(number).name for number in set(self.types.values())},
            "left": {f"of {kind} {became}": count for kind, count in self.left.items()},
            "raw_bytes": sum(rows * size for rows, size in self.shapes.values()),
            "packed_bytes": self.packed_bytes,
        }


def keep_blocks(model: Any, source: Path) -> None:
    """Replace every weight of a dequantised model that is made of one tensor's blocks by these, and note them in the
    model's config (runners/quantized.py)."""
    kept, modules = KeptBlocks(model, model.dtype), owners(model)
    values = {name: parameter.detach() for name, parameter, _ in modules}
    kept.put(GGUFReader(source).tensors, values)
    for name, _, sharing in modules:
        if name in kept.types:
            blocks = nn.Parameter(values[name], requires_grad=False)
            for module in sharing:
                module.weight = blocks
    model.config.quantization_config = kept.settings()


Key = tuple[tuple[int, ...], int]  # shape, and key_of its rows


class Candidate(NamedTuple):
    """A tensor of blocks, and the hashes of its rows."""

    tensor: Any
    hashes: np.ndarray


def candidates(
    among: Iterable[Any], wanted: set[tuple[int, ...]], dtype: torch.dtype
) -> tuple[dict[Key, Candidate], Counter[str]]:
    """Tensors of blocks that have a wanted shape and a kernel; how many others there are of each type."""
    found: dict[Key, Candidate] = {}
    left: Counter[str] = Counter()
    for tensor in among:
        shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
        if tensor.tensor_type.name in FLOATS or len(shape) < 2:
            continue
        if int(tensor.tensor_type) in TYPES and shape in wanted:
            hashes = row_hashes(values_of(tensor, dtype))
            found[shape, key_of(hashes)] = Candidate(tensor, hashes)
        else:
            left[tensor.tensor_type.name] += 1
    return found, left


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
        step = max(1, AT_ONCE // bits.shape[1])
        for start in range(0, len(bits), step):
            hashes[start : start + step] = (bits[start : start + step].astype(np.int64) * factors).sum(1)
    return hashes


def key_of(hashes: np.ndarray) -> int:
    """A hash of a matrix that does not depend on the order of its rows."""
    with np.errstate(over="ignore"):
        return int((hashes * (hashes | 1)).sum())


def blocks_of(one: Candidate, values: torch.Tensor, hashes: np.ndarray) -> torch.Tensor | None:
    """The tensor's blocks, [N, bytes of a row], with rows in the order of `values`; None if they are not its rows."""
    order = np.empty(len(values), np.int64)
    order[np.argsort(hashes, kind="stable")] = np.argsort(one.hashes, kind="stable")
    if not torch.equal(values_of(one.tensor, values.dtype)[torch.from_numpy(order)], values):
        return None
    raw = np.ascontiguousarray(one.tensor.data.reshape(len(values), -1).view(np.uint8))
    return torch.from_numpy(raw[order])
