"""A drafter's published folder → its configuration and its tensors.

Each tensor is requested by name and shape, so an error can name the one that does not fit the target. This module knows
no drafter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from tailrace.base.extras import require_extra
from tailrace.base.json_files import read_object
from tailrace.base.mtp import shorten_name
from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import ModelLoadError, take_first_line
from tailrace.runners.load_errors import MORE_THAN_TENSORS

IGNORED = ("rotary_emb.inv_freq", "t2d")  # derived from the configuration, or from another tensor


class Checkpoint:
    """A drafter's folder. config: the contents of config.json. Tensors are named without a leading "model." or
    "model.language_model."; `take` returns one and removes it from the checkpoint.

    Args:
        folder: config.json, and model.safetensors, its shards, or pytorch_model.bin.
        wanted: which tensors are read, by their names here. None: all.

    Raises:
        ModelLoadError: a file is missing or is not what its name says.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        wanted: Callable[[str], bool] | None = None,
    ) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        self.config = read_object(folder / "config.json")
        found = read_tensors(folder, lambda name: wanted is None or wanted(shorten_name(name)))
        self.tensors = {shorten_name(name): tensor for name, tensor in found.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape; () if there is no such tensor."""
        return tuple(self.tensors[name].shape) if name in self.tensors else ()

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Remove and return a tensor of floats, in the checkpoint's dtype and on its device.

        Raises:
            ModelLoadError: the tensor is missing, its shape differs, or it holds no floats.
        """
        tensor = self._pop(name, shape)
        if not tensor.is_floating_point():
            raise ModelLoadError(f"{self.folder}: {name} must hold floats, got {describe_dtype(tensor)}")
        return tensor.to(self.device, self.dtype).contiguous()

    def take_integers(self, name: str, *shape: int) -> torch.Tensor:
        """Remove and return a tensor of integers, int64, on the checkpoint's device.

        Raises:
            ModelLoadError: the tensor is missing, its shape differs, or it holds no integers.
        """
        tensor = self._pop(name, shape)
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise ModelLoadError(f"{self.folder}: {name} must hold integers, got {describe_dtype(tensor)}")
        return tensor.to(self.device, torch.int64).contiguous()

    def _pop(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self.tensors:
            raise ModelLoadError(f"{self.folder}: there is no tensor {name}, which must be {list(shape)}")
        tensor = self.tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{self.folder}: {name} must be {list(shape)}, got {list(tensor.shape)}")
        return tensor

    def take_optional(self, name: str, *shape: int) -> torch.Tensor | None:
        """Return `take`'s tensor; None if there is no such tensor."""
        return self.take(name, *shape) if name in self.tensors else None

    def finish(self) -> None:
        """Raise ModelLoadError if a tensor is left over: a drafter with more tensors computes something else."""
        left = sorted(name for name in self.tensors if not name.endswith(IGNORED))
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelLoadError(f"{self.folder}: tensors that nothing here uses: {', '.join(left[:3])}{more}")
        self.tensors.clear()

    def value(self, name: str, part: str) -> Any:
        """Return a value from the configuration's section `part`, or else from its top level, or else None."""
        section = self.config.get(part)
        inside = section.get(name) if isinstance(section, dict) else None
        return self.config.get(name) if inside is None else inside

    def flag(self, name: str, part: str, default: bool = False) -> bool:
        """Return a value of `value` that is true or false, or `default` if it is missing.

        Raises:
            ModelLoadError: it is neither true nor false.
        """
        value = self.value(name, part)
        if value is not None and not isinstance(value, bool):
            raise ModelLoadError(f"{self.folder}: {name} must be true or false, got {value!r}")
        return default if value is None else value

    def number(self, name: str, part: str, low: int, high: int) -> int:
        """Return a value of `value` that is an integer.

        Raises:
            ModelLoadError: it is missing, no integer, or outside of low … high.
        """
        value = self.value(name, part)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ModelLoadError(f"{self.folder}: {name} must be an integer in [{low}, {high}], got {value!r}")
        return value


def describe_dtype(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype: "int8"."""
    return str(tensor.dtype).removeprefix("torch.")


def read_tensors(folder: Path, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """Read the wanted tensors of the folder.

    Raises:
        ModelLoadError: the folder has no tensors, or they can't be read.
    """
    with require_extra("serve"):
        from safetensors import safe_open

    tensors: dict[str, torch.Tensor] = {}
    files = sorted(folder.glob("*.safetensors"))
    pickles = [] if files else sorted(folder.glob("pytorch_model*.bin"))
    path = folder
    try:
        for path in files:
            refuse_stand_in(path)
            with safe_open(path, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118
        for path in pickles:
            refuse_stand_in(path)
            found = torch.load(path, map_location="cpu", weights_only=True)
            tensors |= {name: tensor for name, tensor in found.items() if wanted(name)}
    except ModelLoadError:
        raise
    except UnpicklingError as error:
        raise ModelLoadError(f"{folder}: its pickle files {MORE_THAN_TENSORS}") from error
    except Exception as error:  # the libraries raise many kinds
        raise ModelLoadError(f"{path} can't be read: {take_first_line(error)}") from error
    if not files and not pickles:
        raise ModelLoadError(f"{folder} has neither *.safetensors nor pytorch_model*.bin")
    return tensors
