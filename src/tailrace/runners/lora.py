"""LoRA adapters (Hu et al., arXiv 2106.09685) on a model's linear layers, each for the rows that use it.

A layer's output is y = W x. For an adapter's rows it is y + s B (A x). Neither depends on the other rows of the batch:
A and B use the same packed, row-invariant kernels as W. Knows nothing of requests.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tailrace import kernels
from tailrace.base.extras import require_extra
from tailrace.base.json_files import read_object
from tailrace.base.regex_search import RegexLimitError, match_first
from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import ModelLoadError
from tailrace.kernels.transfer import there
from tailrace.runners.load_checks import all_finite

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's format
KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
# settings that change more than y + s B (A x), and the values without such an effect
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
    "use_qalora": (False, None),
    "megatron_config": (None,),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "corda_config": (None,),
    "target_parameters": (None, []),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}

# keys that are read in this file, that repeat what the tensors show, or that say how the adapter was made
HANDLED = {
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
}
MAX_ALPHA = 1e30
NONE_GIVEN = (None, False, "", [], {})

Rows = tuple[tuple[int, torch.Tensor], ...]  # (adapter number, int64 indices into the batch's tokens)


class WeightDelta(NamedTuple):
    """One layer's weights of one adapter. down: A [r, K]; up: s · B [N, r]; both packed."""

    down: Any
    up: Any

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's change for rows: [n, K] → [n, N]."""
        return kernels.linear(kernels.linear(x, self.down), self.up)


class Target(NamedTuple):
    """A linear layer that adapters may change: its sizes, and the dtype of its weights."""

    out_features: int
    in_features: int
    dtype: torch.dtype


Targets = dict[str, Target | None]  # name of a module → what an adapter may change; None: the module is no such layer
Weights = dict[str, tuple[torch.Tensor, torch.Tensor]]  # name of a module → (A, s · B)


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


def list_targets(model: nn.Module) -> Targets:
    """Return what an adapter may change: the linear layers within the model's decoder layers."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return {
        name: Target(module.out_features, module.in_features, module.weight.dtype)
        if isinstance(module, nn.Linear) and module is not head
        else None
        for name, module in model.named_modules()
    }


def read_adapter(name: str, folder: Path, targets: Targets) -> Weights:
    """Return module name → (A, s · B), in the model's dtype.

    Raises:
        ModelLoadError: see Adapters.
    """
    with require_extra("serve"):
        from safetensors.torch import load_file

    try:
        config = read_object(folder / CONFIG)
        refuse_stand_in(folder / WEIGHTS)
    except ModelLoadError as error:
        raise ModelLoadError(f"lora {name}: {error}") from error
    for field, plain in PLAIN.items():
        if config.get(field) not in plain:
            raise ModelLoadError(f"lora {name}: {field} {config.get(field)!r} is not supported ({folder / CONFIG})")
    for field in sorted(config.keys() - PLAIN.keys() - HANDLED):
        if config[field] not in NONE_GIVEN:
            raise ModelLoadError(f"lora {name}: {field} is not a known setting ({folder / CONFIG})")
    check_alphas(f"lora {name}", config, folder / CONFIG)
    try:
        tensors = load_file(folder / WEIGHTS)
    except Exception as error:  # the library raises many kinds
        raise ModelLoadError(f"lora {name}: {folder / WEIGHTS} can't be read: {error}") from error
    parts: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        if (at := KEY.fullmatch(key)) is None:
            raise ModelLoadError(f"lora {name}: {key!r} is not supported; only linear layers' lora_A and lora_B are")
        parts[at["module"]][at["part"]] = tensor
    alphas = find_alphas(f"lora {name}", config, list(parts), folder / CONFIG)
    found = {
        module: read_pair(name, module, both, config | {"lora_alpha": alpha}, targets)
        for (module, both), alpha in zip(parts.items(), alphas, strict=True)
    }
    if not found:
        raise ModelLoadError(f"lora {name}: {folder / WEIGHTS} holds nothing")
    return found


def check_alphas(whose: str, config: dict[str, Any], path: Path) -> None:
    """Check lora_alpha, 8 if it is missing, and alpha_pattern.

    Raises:
        ModelLoadError: they are not a finite number, and a table of regexes and such numbers.
    """
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise ModelLoadError(f"{whose}: alpha_pattern must be a table of regexes and numbers ({path})")
    for alpha in (config.setdefault("lora_alpha", 8), *patterns.values()):
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= MAX_ALPHA:
            raise ModelLoadError(f"{whose}: lora_alpha and alpha_pattern must be numbers, got {alpha!s:.80} ({path})")
    for pattern in patterns:
        try:
            re.compile(pattern)
            re.compile(wrap_pattern(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise ModelLoadError(f"{whose}: alpha_pattern has {pattern!r:.80}, which is no regex ({path})") from error


def wrap_pattern(pattern: str) -> str:
    """Return the regex that matches the names of modules that end with the pattern, as PEFT has it."""
    return rf"(.*\.)?({pattern})$"


def find_alphas(whose: str, config: dict[str, Any], modules: list[str], path: Path) -> list[float]:
    """Return the alpha of each module: that of the first pattern that matches its name, else lora_alpha.

    Raises:
        ModelLoadError: a pattern takes too much time or memory.
    """
    patterns: dict[str, float] = config.get("alpha_pattern") or {}
    regexes = {wrap_pattern(pattern): pattern for pattern in patterns}
    try:
        places = match_first(list(regexes), modules)
    except RegexLimitError as error:
        pattern = regexes[error.regex]
        raise ModelLoadError(
            f"{whose}: to match alpha_pattern {pattern!r:.80} takes too much time or memory ({path})"
        ) from None
    values = list(patterns.values())
    return [config["lora_alpha"] if place is None else values[place] for place in places]


def read_pair(
    name: str, module: str, both: dict[str, torch.Tensor], config: dict[str, Any], targets: Targets
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A, s · B) of one layer."""
    if module not in targets:
        raise ModelLoadError(f"lora {name}: the model has no {module}")
    if (layer := targets[module]) is None:
        raise ModelLoadError(f"lora {name}: {module} is no linear layer within the model's decoder layers")
    if both.keys() != {"A", "B"}:
        raise ModelLoadError(f"lora {name}: {module} lacks its lora_{({'A', 'B'} - both.keys()).pop()}")
    down, up = both["A"], both["B"]
    rank = down.shape[0]
    if rank < 1 or down.shape != (rank, layer.in_features) or up.shape != (layer.out_features, rank):
        raise ModelLoadError(
            f"lora {name}: {module} is {layer.out_features} × {layer.in_features}, but its A is {tuple(down.shape)} "
            f"and its B {tuple(up.shape)}"
        )
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    down, up = down.to(layer.dtype), (up.float() * scale).to(layer.dtype)
    if not all_finite(down) or not all_finite(up):
        raise ModelLoadError(f"lora {name}: {module} is changed by numbers that are NaN or infinite")
    return down, up
