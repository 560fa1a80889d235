"""Modules whose weights are blocks of quantized numbers, and how such modules replace those of a model.

models/convert_quantized.py and models/convert_folder.py write folders with such weights. The `quantization_config` in
such a folder's config.json names the type of each parameter's blocks. transformers passes that config to
runners/quantizer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tailrace import kernels
from tailrace.base.expert_modules import are_experts
from tailrace.errors import ModelLoadError
from tailrace.runners.experts import GroupedLinear, PackedExperts


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


class ExpertBlocks:
    """The blocks of one projection of all experts of a layer, until the layer is replaced by PackedExperts.

    module: transformers' experts; its parameter `name` holds the raw blocks, uint8 [E, N, bytes of a row].

    Raises:
        ModelLoadError: shape has another number of experts or outputs than the module. A token's choice of an expert
            without blocks would add nothing.
    """

    def __init__(self, module: Any, name: str, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.module, self.name, self.dtype = module, name, dtype
        own = getattr(module, name)
        matrices = own.mT if module.is_transposed else own
        self.width = matrices.shape[2]
        if tuple(shape[:2]) != matrices.shape[:2]:
            raise ModelLoadError(
                f"the blocks of {name} are {shape[0]} matrices of {shape[1]} rows, and by config.json there are "
                f"{matrices.shape[0]} of {matrices.shape[1]}"
            )
        self._set_parameter(torch.empty(tuple(shape), dtype=torch.uint8, device="meta"))

    @property
    def weight(self) -> torch.Tensor:
        """The raw blocks."""
        return getattr(self.module, self.name)

    def pack(self, ggml_type: int) -> None:
        """Pack each expert's blocks and drop the raw ones. The parameter then has the model's dtype and no entries."""
        raws = self.weight.data
        biases = getattr(self.module, f"{self.name}_bias") if self.module.has_bias else [None] * len(raws)
        layers = [
            kernels.pack_quantized(raw, ggml_type, self.width, bias) for raw, bias in zip(raws, biases, strict=True)
        ]
        packed = vars(self.module).setdefault("quantized", {})
        packed[self.name] = GroupedLinear(kernels.group_packed(layers), len(layers))
        self._set_parameter(torch.empty((0, 0, self.width), dtype=self.dtype))

    def _set_parameter(self, tensor: torch.Tensor) -> None:
        setattr(self.module, self.name, nn.Parameter(tensor, requires_grad=False))


Swapped = dict[str, Any]  # name of the weight → its module of blocks, or ExpertBlocks


def swap_modules(model: nn.Module, shapes: dict[str, Sequence[int]], dtype: torch.dtype) -> Swapped:
    """Replace the modules whose weights `shapes` names by modules of blocks. Experts stay until pack_all.

    Raises:
        ModelLoadError: the model has no such module, the module is no linear layer, no embedding and no experts, or
            shapes of experts are not the model's.
    """
    found: Swapped = {}
    for name, shape in shapes.items():
        path, _, own = name.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError as error:
            raise ModelLoadError(f"the model has no module {path}, whose weights are quantized") from error
        if are_experts(module) and len(shape) == 3:
            found[name] = ExpertBlocks(module, own, shape, dtype)
            continue
        made = MODULES.get(type(module))
        if made is None:
            raise ModelLoadError(f"{path} is a {type(module).__name__}, whose weights can't be quantized")
        module.__class__ = made
        found[name] = module
        found[name].allocate_raw((shape[0], shape[1]), dtype)
    return found


def pack_all(model: nn.Module, swapped: Swapped, types: dict[str, int]) -> None:
    """Pack every module's blocks, and those that several modules share once. The raw blocks are freed one by one.

    Raises:
        ModelLoadError: the blocks of a module are damaged.
    """
    done: dict[int, Any] = {}
    raws = {name: module.weight for name, module in swapped.items()}
    for name, module in swapped.items():
        raw = raws.pop(name)
        try:
            if isinstance(module, ExpertBlocks):
                module.pack(types[name])
            else:
                pack_module(module, types[name], done)
        except ValueError as error:
            raise ModelLoadError(f"{name}: {error}") from error
        if not any(other is raw for other in raws.values()):
            raw.data = torch.empty(0, dtype=torch.uint8)
    for path in {name.rpartition(".")[0] for name, module in swapped.items() if isinstance(module, ExpertBlocks)}:
        model.set_submodule(path, PackedExperts(model.get_submodule(path)))


def pack_module(module: Any, ggml_type: int, done: dict[int, Any]) -> None:
    """Pack the blocks of a linear layer or an embedding. done: id of the raw blocks → packed ones."""
    bias, raw = getattr(module, "bias", None), module.weight
    width = module.in_features if hasattr(module, "in_features") else module.embedding_dim
    if id(raw) not in done or bias is not None:
        done[id(raw)] = kernels.pack_quantized(raw.data, ggml_type, width, bias)
    module.set_packed(done[id(raw)])


def rounds_activations(model: nn.Module) -> bool:
    """Return True if linear layers round their inputs to integers. A last bit that differs before may then become a
    step of 1/254. So two ways to compute the same agree only as well as in bfloat16, whatever the dtype."""
    return any(
        isinstance(module, QuantizedLinear) or (isinstance(module, PackedExperts) and module.quantized)
        for module in model.modules()
    )
