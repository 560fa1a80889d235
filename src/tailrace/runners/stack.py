"""The decoder layers of a transformers model, from outside: run only the first of them, see what some of them put out.

Knows nothing of batches or caches. The list of layers belongs to the model's own code, which runs it from the first to the last
whatever its length; so fewer layers are a shorter list, and nothing of the model's code is repeated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tailrace.errors import ModelLoadError


class Stack:
    """hidden: [T, C·H], what the captured layers put out in the last pass that was kept, side by side; [0, 0] before that.

    Raises:
        ModelLoadError: the model has no list of `num_layers` layers.
    """

    def __init__(self, model: Any, num_layers: int) -> None:
        self.owner, self.name = find(model, num_layers)
        self.layers: nn.ModuleList = getattr(self.owner, self.name)
        self.shorter: dict[int, nn.ModuleList] = {}
        self.captures: tuple[int, ...] = ()
        self.outputs: dict[int, torch.Tensor] = {}
        self.hooks: list[Any] = []
        self.hidden = torch.empty(0, 0)

    @contextmanager
    def cut(self, count: int) -> Iterator[None]:
        """Within it, the model has its first `count` layers only.

        Raises:
            ValueError: there are not so many, or none are wanted.
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
        """Which layers' outputs `keep` puts side by side: 0 … L − 1, or L: what enters the output head. () stops it.

        Raises:
            ValueError: there is no such layer, or one is named twice.
        """
        last = len(self.layers)
        if len(set(captures)) < len(captures) or not all(0 <= i <= last for i in captures):
            raise ValueError(f"captured layers must be different integers in [0, {last}], got {captures}")
        for hook in self.hooks:
            hook.remove()
        places = {i: self.owner if i == last else self.layers[i] for i in captures}
        self.hooks = [module.register_forward_hook(self._watch(i)) for i, module in places.items()]
        self.captures, self.hidden = captures, torch.empty(0, 0)

    def keep(self) -> None:
        """The pass that has just ended is the one that `hidden` is about."""
        if self.captures:
            self.hidden = torch.cat([self.outputs[i] for i in self.captures], -1)
            self.outputs.clear()

    def _watch(self, index: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            states = output if isinstance(output, torch.Tensor) else output[0]
            self.outputs[index] = states[0]

        return hook


def find(model: nn.Module, num_layers: int) -> tuple[nn.Module, str]:
    """The module that holds the list of decoder layers, and the list's name there: the first of this length, each of whose members
    has attention in it."""
    for owner in model.modules():
        for name, child in owner.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == num_layers and all(map(attends, child)):
                return owner, name
    raise ModelLoadError(f"{type(model).__name__} has no list of {num_layers} decoder layers")


def attends(module: nn.Module) -> bool:
    """Is there an attention module in it?"""
    return any("Attention" in type(part).__name__ for part in module.modules())
