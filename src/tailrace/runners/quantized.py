"""Models whose weights are in blocks: the modules that hold them.

models/convert_quantized.py and models/convert_folder.py write such folders. Their config.json has a
`quantization_config` whose method is `tailrace` and whose types say which parameters are blocks; transformers hands
these to runners/quantizer.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tailrace import kernels
from tailrace.errors import ConfigError, ModelLoadError

log = logging.getLogger(__name__)
METHOD = "tailrace"


class Blocks(nn.Module):
    """What both modules have. weight: at first the raw blocks, uint8 [N, bytes of a row]; once packed it has the
    model's dtype, which a model's code may ask for, and no entries."""

    packed: Any = None

    def hold(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        """Make room for the raw blocks."""
        self.dtype = dtype
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.uint8, device="meta"), requires_grad=False)

    def pack(self, packed: Any) -> None:
        """Take the packed weights in place of the raw ones."""
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


def swap(model: nn.Module, shapes: dict[str, tuple[int, int]], dtype: torch.dtype) -> dict[str, Any]:
    """Put modules that hold blocks in place of those whose weights `shapes` names. → name of the weight → module.

    Raises:
        ModelLoadError: there is no such module, or it is of another kind.
    """
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        path = name.removesuffix(".weight")
        try:
            module = model.get_submodule(path)
        except AttributeError as error:
            raise ModelLoadError(f"the model has no module {path}, whose weights are quantised") from error
        made = MODULES.get(type(module))
        if made is None:
            raise ModelLoadError(f"{path} is a {type(module).__name__}, whose weights can't be quantised")
        module.__class__ = made
        found[name] = module
        found[name].hold(shape, dtype)
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
        module.pack(done[id(raw)])
        if not any(other is raw for other in raws.values()):
            raw.data = torch.empty(0, dtype=torch.uint8)


def rounds_activations(model: nn.Module) -> bool:
    """True if linear layers round their inputs to integers: a last bit that differs before may then be a step of 1/254,
    so two ways to compute the same agree as well as in bfloat16, whatever the dtype is."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def settings_of(config: Any) -> dict[str, Any] | None:
    """The `quantization_config` of a model's config, if it is of this method."""
    settings = getattr(config, "quantization_config", None)
    return settings if isinstance(settings, dict) and settings.get("quant_method") == METHOD else None


def admit(config: Any, device: torch.device) -> None:
    """Let transformers load such a model, and say what it holds. Nothing for other models.

    Raises:
        ConfigError: the device has no kernels for blocks.
    """
    settings = settings_of(config)
    if settings is None:
        return
    if device.type != "cpu":
        raise ConfigError(
            "model.weights quantized and model.quantize have kernels on the CPU only; leave them out, or set "
            "model.device to cpu"
        )
    import_module("tailrace.runners.quantizer")
    log.info("%s", summary(settings))


def summary(settings: dict[str, Any]) -> str:
    """How many tensors stay in which type, or became it, and what became of the others."""
    kept = Counter(settings.get("names", {}).get(str(number), str(number)) for number in settings["types"].values())
    verb = settings.get("verb", "stay")
    parts = [f"{count} tensors {verb} {name}" for name, count in sorted(kept.items())]
    return "; ".join([*parts, *(f"{count} {why}" for why, count in settings.get("left", {}).items())])
