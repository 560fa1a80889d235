"""Modules whose weights are blocks of quantized numbers, and how such modules replace those of a model.

models/convert_quantized.py and models/convert_folder.py write folders with such weights. The `quantization_config` in
such a folder's config.json names the type of each parameter's blocks. transformers passes that config to
runners/quantizer.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tailrace import kernels
from tailrace.errors import ModelLoadError


class Blocks(nn.Module):
    """The common part of both modules.

    weight: at first the raw blocks, uint8 [N, bytes of a row]. After packing, the parameter has no entries. Its dtype
    is then the model's, because a model's code may read it.
    """

    packed: Any = None

    def allocate_raw(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        """Allocate the raw blocks."""
        self.dtype = dtype
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.uint8, device="meta"), requires_grad=False)

    def set_packed(self, packed: Any) -> None:
        """Keep the packed weights and drop the raw ones."""
        self.packed = packed
        self.weight = nn.Parameter(torch.empty((0, packed.k), dtype=self.dtype), requires_grad=False)


class QuantizedLinear(Blocks, nn.Linear):
    """nn.Linear of blocks."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return kernels.linear(input, self.packed)


class QuantizedEmbedding(Blocks, nn.Embedding):
    """nn.Embedding of blocks; rows are widened as they are read."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return kernels.quantized_rows(self.packed, input, self.dtype)


MODULES: dict[type[nn.Module], type[Any]] = {nn.Linear: QuantizedLinear, nn.Embedding: QuantizedEmbedding}


def swap_modules(model: nn.Module, shapes: dict[str, tuple[int, int]], dtype: torch.dtype) -> dict[str, Any]:
    """Replace the modules whose weights `shapes` names by modules of blocks. Return name of the weight → module.

    Raises:
        ModelLoadError: the model has no such module, or the module is neither a linear layer nor an embedding.
    """
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        path = name.removesuffix(".weight")
        try:
            module = model.get_submodule(path)
        except AttributeError as error:
            raise ModelLoadError(f"the model has no module {path}, whose weights are quantized") from error
        made = MODULES.get(type(module))
        if made is None:
            raise ModelLoadError(f"{path} is a {type(module).__name__}, whose weights can't be quantized")
        module.__class__ = made
        found[name] = module
        found[name].allocate_raw(shape, dtype)
    return found


def pack_all(modules: dict[str, Any], types: dict[str, int]) -> None:
    """Pack every module's blocks, and those that several modules share once. The raw blocks are freed one by one.

    Raises:
        ModelLoadError: the blocks of a module are damaged.
    """
    done: dict[int, Any] = {}
    raws = {name: module.weight for name, module in modules.items()}
    for name, module in modules.items():
        raw = raws.pop(name)
        bias = getattr(module, "bias", None)
        width = module.in_features if hasattr(module, "in_features") else module.embedding_dim
        if id(raw) not in done or bias is not None:
            try:
                done[id(raw)] = kernels.pack_quantized(raw.data, types[name], width, bias)
            except ValueError as error:
                raise ModelLoadError(f"{name}: {error}") from error
        module.set_packed(done[id(raw)])
        if not any(other is raw for other in raws.values()):
            raw.data = torch.empty(0, dtype=torch.uint8)


def rounds_activations(model: nn.Module) -> bool:
    """Return True if linear layers round their inputs to integers. A last bit that differs before may then become a
    step of 1/254. So two ways to compute the same agree only as well as in bfloat16, whatever the dtype."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())
