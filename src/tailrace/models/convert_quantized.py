"""Matrices of a GGUF file that stay in their blocks. Imports torch; part of convert.py's process.

A matrix stays under three conditions. A block never spans two rows, so nothing is lost.

- Moving rows of tensors of one block type makes the matrix (gguf_recipes.py).
- The block type has a kernel.
- Only linear layers and embeddings own the matrix, or it has a projection of all experts of a layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import nn

from tailrace import _cpu
from tailrace.base.expert_modules import are_experts
from tailrace.models.gguf_recipes import Recipe
from tailrace.models.tensors import BLOCKS_METHOD

TYPES = {number for number, _, _ in _cpu.quantized_types()}
FLOATS = ("F32", "F16", "BF16", "F64")


class KeptBlocks:
    """Which of a model's matrices are made of blocks. types: the matrix's name → the type of its blocks, shapes: their
    raw shape; left: tensors of blocks that became numbers, by type."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.owned = {name for name, _, _ in list_owned_matrices(model)}
        self.experts = {name: module.is_transposed for name, module in list_expert_matrices(model)}
        self.types: dict[str, int] = {}
        self.shapes: dict[str, list[int]] = {}
        self.left: Counter[str] = Counter()
        self.packed_bytes = 0

    def blocks(self, name: str, shape: tuple[int, ...], tensors: list[Any], recipe: Recipe) -> torch.Tensor | None:
        """Return the blocks of a parameter, uint8 [N, bytes of a row]; None if it becomes numbers.

        Raises:
            ModelLoadError: as `Maker.make_parameter`.
        """
        kinds = {tensor.tensor_type for tensor in tensors}
        kind = kinds.pop() if len(kinds) == 1 else None
        transposed = self.experts.get(name)
        join = recipe.experts if transposed is not None else recipe.join if recipe.rows and name in self.owned else None
        if kind is None or int(kind) not in TYPES or join is None:
            self.left.update(tensor.tensor_type.name for tensor in tensors if tensor.tensor_type.name not in FLOATS)
            return None
        raw = join([read_blocks(tensor, len(shape)) for tensor in tensors])
        widths = {int(tensor.shape[0]) for tensor in tensors}
        if (*raw.shape[:-1], *widths) != ((shape[0], shape[2], shape[1]) if transposed else shape):
            raise ValueError("the rows are not the model's")
        self.types[name], self.shapes[name] = int(kind), list(raw.shape)
        matrices = 1 if len(shape) == 2 else len(raw)
        self.packed_bytes += matrices * _cpu.quantized_bytes(int(kind), raw.shape[-2], widths.pop())
        return torch.from_numpy(np.require(raw, None, ["C", "W"]))

    def settings(self) -> dict[str, Any]:
        """Return the `quantization_config` that runners/quantizer.py reads."""
        became = f"became {str(self.dtype).removeprefix('torch.')}"
        return {
            "quant_method": BLOCKS_METHOD,
            "types": self.types,
            "shapes": self.shapes,
            "names": {str(number): GGMLQuantizationType(number).name for number in set(self.types.values())},
            "left": {f"of {kind} {became}": count for kind, count in self.left.items()},
            "raw_bytes": sum(prod(shape) for shape in self.shapes.values()),
            "packed_bytes": self.packed_bytes,
        }


def read_blocks(tensor: Any, dimensions: int) -> np.ndarray:
    """Return the bytes of a tensor's rows: uint8 [rows, bytes of a row], or [experts, rows, bytes of a row]."""
    shape = tensor.data.shape
    leading = (-1,) if dimensions == 2 else (shape[0], -1)
    return tensor.data.reshape(*leading, shape[-1]).view(np.uint8)


def list_expert_matrices(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the matrices of all experts of a layer: (name of the parameter, its module)."""
    for path, module in model.named_modules():
        if are_experts(module):
            for name in ("gate_up_proj", "up_proj", "down_proj"):
                if isinstance(getattr(module, name, None), nn.Parameter):
                    yield f"{path}.{name}", module


def list_owned_matrices(model: nn.Module) -> list[tuple[str, nn.Parameter, list[Any]]]:
    """Return every matrix that only linear layers and embeddings own: (first name, the parameter, the modules)."""
    found: dict[int, tuple[str, nn.Parameter, list[Any]]] = {}
    others: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if type(module) not in (nn.Linear, nn.Embedding) or name != "weight":
                others.add(id(parameter))
            else:
                found.setdefault(id(parameter), (f"{path}.{name}", parameter, []))[2].append(module)
    return [entry for number, entry in found.items() if number not in others]
