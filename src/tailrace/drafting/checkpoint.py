"""A drafter's published folder → its configuration and its tensors. Each tensor is asked for by name and shape, so an
error can name the one that does not fit the target. Knows no drafter."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch

from tailrace.errors import ModelLoadError
from tailrace.extras import needs

IGNORED = ("rotary_emb.inv_freq", "t2d")  # derived from the configuration, or from another tensor


class Checkpoint:
    """config: config.json as it is. Tensors are named without a leading "model."; `take` gives one away.

    Args:
        folder: config.json beside model.safetensors, its shards, or pytorch_model.bin.

    Raises:
        ModelLoadError: a file is missing or is not what its name says.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        try:
            self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{folder}: config.json: {error}") from error
        self.tensors = {name.removeprefix("model."): tensor for name, tensor in read(folder).items()}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """() where there is no such tensor."""
        return tuple(self.tensors[name].shape) if name in self.tensors else ()

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor, in our dtype where it has floating point, on our device.

        Raises:
            ModelLoadError: it is not there, or its shape is another.
        """
        if name not in self.tensors:
            raise ModelLoadError(f"{self.folder}: there is no tensor {name}, which must be {list(shape)}")
        tensor = self.tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{self.folder}: {name} must be {list(shape)}, got {list(tensor.shape)}")
        tensor = tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
        return tensor.contiguous()

    def maybe(self, name: str, *shape: int) -> torch.Tensor | None:
        """As `take`; None where there is no such tensor."""
        return self.take(name, *shape) if name in self.tensors else None

    def finish(self) -> None:
        """Raise ModelLoadError if a tensor is left over: a drafter that has more than we use computes something
        else."""
        left = sorted(name for name in self.tensors if not name.endswith(IGNORED))
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelLoadError(f"{self.folder}: tensors that nothing here uses: {', '.join(left[:3])}{more}")
        self.tensors.clear()

    def value(self, name: str, part: str) -> Any:
        """Of the configuration's section `part`, or else of its top level; None where there is none."""
        section = self.config.get(part)
        inside = section.get(name) if isinstance(section, dict) else None
        return self.config.get(name) if inside is None else inside

    def flag(self, name: str, part: str, default: bool = False) -> bool:
        """As `value`: true or false.

        Raises:
            ModelLoadError: it is neither.
        """
        value = self.value(name, part)
        if value is not None and not isinstance(value, bool):
            raise ModelLoadError(f"{self.folder}: {name} must be true or false, got {value!r}")
        return default if value is None else value

    def number(self, name: str, part: str, low: int, high: int) -> int:
        """As `value`: an integer.

        Raises:
            ModelLoadError: it is missing, no integer, or outside of low … high.
        """
        value = self.value(name, part)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ModelLoadError(f"{self.folder}: {name} must be an integer in [{low}, {high}], got {value!r}")
        return value


def read(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder.

    Raises:
        ModelLoadError: there are none, or they can't be read.
    """
    with needs("serve"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(path)
        for path in [] if tensors else sorted(folder.glob("pytorch_model*.bin")):
            tensors |= torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, SafetensorError, pickle.UnpicklingError) as error:
        raise ModelLoadError(f"{folder}: {error}") from error
    if not tensors:
        raise ModelLoadError(f"{folder} has neither *.safetensors nor pytorch_model*.bin")
    return tensors
