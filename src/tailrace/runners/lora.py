"""LoRA adapters (Hu et al., arXiv 2106.09685) on a model's linear layers, each for the rows that use it.

A layer's output is y = W x. For an adapter's rows it is y + s B (A x). Neither depends on the other rows of the batch:
A and B use the same packed, row-invariant kernels as W. Knows nothing of requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tailrace import kernels
from tailrace.errors import ModelLoadError
from tailrace.kernels.transfer import there
from tailrace.runners.lora_files import Weights, list_targets, read_adapter

Rows = tuple[tuple[int, torch.Tensor], ...]  # (adapter number, int64 indices into the batch's tokens)


class WeightDelta(NamedTuple):
    """One layer's weights of one adapter. down: A [r, K]; up: s · B [N, r]; both packed."""

    down: Any
    up: Any

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's change for rows: [n, K] → [n, N]."""
        return kernels.linear(kernels.linear(x, self.down), self.up)


class Adapters:
    """All adapters of one model. The first adapter is number 1. A number is never given twice.

    Args:
        of: name → folder. more: adapters may come at run time.

    Attributes:
        names: of the adapters by their numbers; "" for a retired adapter.

    Raises:
        ModelLoadError: an adapter is missing, is no plain LoRA, or does not fit the model; the message names it.
    """

    def __init__(self, of: dict[str, Path], model: nn.Module, more: bool = False) -> None:
        self.names = tuple(of)
        self.more = more
        self.rows: Rows = ()  # of the step that is being computed
        self.total = 0  # tokens in the step
        self.calls: Counter[str] = Counter()  # name of a layer → calls with all tokens, while adapters are in use
        self._model, self._targets = model, list_targets(model)
        self._weights = [read_adapter(name, folder, self._targets) for name, folder in of.items()]
        self._deltas: dict[str, dict[int, WeightDelta]] = {}

    @property
    def modules(self) -> set[str]:
        """The linear layers that any adapter changes or may change."""
        if self.more:
            return {module for module, target in self._targets.items() if target is not None}
        return {module for weights in self._weights for module in weights}

    def owners(self, model: nn.Module) -> set[str]:
        """Return the classes of the modules that contain these layers. Replacing such a module as a whole
        (runners/fuse.py) would bypass the adapter."""
        return {type(model.get_submodule(module.rpartition(".")[0])).__name__ for module in self.modules}

    def take(self, rows: Rows, total: int, device: torch.device) -> None:
        """Set the rows of each adapter in the next step, which has `total` tokens."""
        self.rows, self.total = tuple((number, there(places, device)) for number, places in rows), total

    def attach(self, trial: Callable[[Rows], Any], tokens: int) -> None:
        """Hook the layers, and check that each is called once with all tokens of a step. trial: a pass of `tokens`
        tokens with these rows. For adapters that come later, find the layers of which this holds.

        Raises:
            ModelLoadError: a layer is not (such as an expert's, which sees only some rows).
        """
        for number, weights in enumerate(self._weights, 1):
            self._pack(number, weights)
        self._weights = []
        everything = torch.arange(tokens)
        if self.names:
            trial(tuple((number, everything) for number in range(1, len(self.names) + 1)))
            if (called := self.calls.total()) != len(self._deltas):
                raise ModelLoadError(f"lora: {len(self._deltas)} layers must be changed, but a pass called {called}")
        if self.more:
            self._find_whole_layers(lambda: trial(((len(self.names) + 1, everything),)))

    def read(self, name: str, folder: Path) -> Weights:
        """Return the weights of an adapter that comes at run time. Any thread may call it.

        Raises:
            ModelLoadError: see the class.
        """
        return read_adapter(name, folder, self._targets)

    def add(self, name: str, weights: Weights) -> None:
        """Add an adapter between two steps, under the next number."""
        self.names += (name,)
        self._pack(len(self.names), weights)

    def retire(self, name: str) -> None:
        """Forget an adapter's name. Its weights stay for the requests that use its number."""
        self.names = tuple("" if name == known else known for known in self.names)

    def drop(self, number: int) -> None:
        """Free the weights of an adapter that no request uses any more."""
        for deltas in self._deltas.values():
            deltas.pop(number, None)

    def _pack(self, number: int, weights: Weights) -> None:
        # a packed layer has no parameters of its own; the model always has some
        device = next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))
        for module, parts in weights.items():
            if module not in self._deltas:
                self._deltas[module] = {}
                hook = self._make_adapter_hook(module, self._deltas[module])
                self._model.get_submodule(module).register_forward_hook(hook)
            self._deltas[module][number] = WeightDelta(*(kernels.pack_linear(part.to(device)) for part in parts))

    def _find_whole_layers(self, trial: Callable[[], Any]) -> None:
        """Leave as targets only the layers that a pass calls once, with all tokens."""
        self.calls.clear()
        seen: Counter[str] = Counter()
        hooks = []
        for module in self.modules:

            def count_call(
                layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor, module: str = module
            ) -> None:
                seen[module] += 1 if inputs[0].flatten(0, -2).shape[0] == self.total else 2

            hooks.append(self._model.get_submodule(module).register_forward_hook(count_call))
        trial()
        for hook in hooks:
            hook.remove()
        self._targets = {module: target if seen[module] == 1 else None for module, target in self._targets.items()}

    def _make_adapter_hook(self, module: str, deltas: dict[int, WeightDelta]) -> Callable[..., torch.Tensor]:
        def add_deltas(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            if not self.rows:
                return output
            x, y = inputs[0].flatten(0, -2), output.flatten(0, -2)
            if len(x) != self.total:
                raise ModelLoadError(
                    f"lora: {module} sees only {len(x)} of {self.total} tokens, so no adapter can change it"
                )
            self.calls[module] += 1
            for number, places in self.rows:
                if number in deltas:
                    y.index_add_(0, places, deltas[number](x[places]))
            return y.view_as(output)

        return add_deltas
