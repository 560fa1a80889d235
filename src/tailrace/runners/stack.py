"""The decoder layers of a transformers model, from outside: run only the first ones, or keep the outputs of some.

Knows nothing of batches or caches. The model's own code runs the list of layers from first to last, whatever its
length. So running fewer layers means a shorter list, and none of the model's code is repeated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tailrace.errors import ModelLoadError


class Stack:
    """The list of decoder layers of one model.

    hidden: [T, C·H], outputs of the captured layers in the last pass that was kept, side by side; [0, 0] before that.

    Raises:
        ModelLoadError: the model has no list of `num_layers` layers.
    """

    def __init__(self, model: Any, num_layers: int) -> None:
        self.owner, self.name = find_layer_list(model, num_layers)
        self.layers: nn.ModuleList = getattr(self.owner, self.name)
        self.shorter: dict[int, nn.ModuleList] = {}
        self.captures: tuple[int, ...] = ()
        self.outputs: dict[int, torch.Tensor] = {}
        self.hooks: list[Any] = []
        self.hidden = torch.empty(0, 0)

    @contextmanager
    def cut(self, count: int) -> Iterator[None]:
        """Let the model have only its first `count` layers inside this context.

        Raises:
            ValueError: count is not in 1 … L.
        """
        if not 1 <= count <= len(self.layers):
            raise ValueError(f"layers must be an integer in [1, {len(self.layers)}], got {count}")
        if count not in self.shorter:
            self.shorter[count] = nn.ModuleList(list(self.layers)[:count])
        setattr(self.owner, self.name, self.shorter[count])
        try:
            yield
        finally:
            setattr(self.owner, self.name, self.layers)

    def capture(self, captures: tuple[int, ...]) -> None:
        """Choose the layers whose outputs `keep` collects: 0 … L − 1, or L for the input of the output head. () stops
        it.

        Raises:
            ValueError: there is no such layer, or one is named twice.
        """
        last = len(self.layers)
        if len(set(captures)) < len(captures) or not all(0 <= i <= last for i in captures):
            raise ValueError(f"captured layers must be different integers in [0, {last}], got {captures}")
        for hook in self.hooks:
            hook.remove()
        places = {i: self.owner if i == last else self.layers[i] for i in captures}
        self.hooks = [module.register_forward_hook(self._make_capture_hook(i)) for i, module in places.items()]
        self.captures, self.hidden = captures, torch.empty(0, 0)

    def keep(self) -> None:
        """Keep the outputs of the pass that has just ended in `hidden`."""
        if self.captures:
            self.hidden = torch.cat([self.outputs[i] for i in self.captures], -1)
            self.outputs.clear()

    def _make_capture_hook(self, index: int) -> Any:
        def capture_states(module: nn.Module, inputs: Any, output: Any) -> None:
            states = output if isinstance(output, torch.Tensor) else output[0]
            self.outputs[index] = states[0]

        return capture_states


def find_layer_list(model: Any, num_layers: int) -> tuple[nn.Module, str]:
    """Return the module that holds the list of decoder layers, and the list's name in it: the first list of this length
    in which a member contains attention. (In a hybrid other members keep a state instead.) Of a model that also sees or
    hears, the list that reads text."""
    config = getattr(model, "config", None)
    composite = config is not None and config.get_text_config() is not config
    for owner in (model.get_decoder() if composite else model).modules():
        for name, child in owner.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == num_layers and any(map(has_attention, child)):
                return owner, name
    raise ModelLoadError(f"{type(model).__name__} has no list of {num_layers} decoder layers")


def has_attention(module: nn.Module) -> bool:
    """Return True if the module contains attention."""
    return any("Attention" in type(part).__name__ for part in module.modules())
