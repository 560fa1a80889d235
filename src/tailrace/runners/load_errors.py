"""Errors for folders that transformers can't load: a sentence that names the field of config.json, or the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from tailrace.base.extras import require_extra
from tailrace.errors import ModelLoadError
from tailrace.models.auto_class import find_auto_class

MORE_THAN_TENSORS = "hold more than tensors, which could be code; use safetensors"  # torch.load, of pickle files


def make_load_error(folder: Path, config: Any, error: Exception, remote_code: bool) -> ModelLoadError:
    """Return the error for an exception of transformers, which names tensors that don't fit only in its log."""
    if "trust_remote_code" in str(error):
        return ModelLoadError(f"{folder}: its config.json needs Python code (auto_map), which --trust-remote-code runs")
    if isinstance(error, MemoryError):
        return ModelLoadError(f"{folder}: its config.json, or its weights, take too much memory")
    if isinstance(error, UnpicklingError):
        return ModelLoadError(f"{folder}: its pickle files {MORE_THAN_TENSORS}")
    if isinstance(error, OSError | ValueError | ImportError):  # these are written for people
        return ModelLoadError(f"{folder}: {' '.join(str(error).split())}")
    problem = None
    if config is not None and "mismatched" in str(error):
        problem = find_shape_mismatch(folder, config, remote_code)
    if config is not None and isinstance(error, KeyError):
        problem = next(
            (f"{key} {value!r} is not known" for key, value in list_settings(config) if error.args == (value,)), None
        )
        problem = problem and f"config.json: {problem}"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    text = text.replace("the above report!", "the report that TAILRACE_LOG=debug shows")  # see hide_reports
    return ModelLoadError(f"{folder}: {problem or f'no model can be made of its config.json ({text:.300})'}")


def find_shape_mismatch(folder: Path, config: Any, remote_code: bool) -> str | None:
    """Return the first tensor whose shape differs from the shape that config.json gives it. Return None if there is
    none. Only names that the model has too are compared."""
    with torch.device("meta"):  # takes no memory
        model: nn.Module = find_auto_class(config).from_config(config, trust_remote_code=remote_code)
    made, found = dict(model.named_parameters()), dict(read_shapes(folder))
    for name, parameter in made.items():
        if (shape := found.get(name, parameter.shape)) == parameter.shape:
            continue
        changed = [pair for pair in zip(parameter.shape, shape, strict=False) if pair[0] != pair[1]]
        fields = [
            f"{key} {value}"
            for key, value in list_settings(config)
            if any(may_explain_width(key, value, *pair) for pair in changed)
        ]
        by = f"config.json ({' or '.join(fields)})" if fields else "config.json"
        return f"tensor {name} is {list(shape)}, and by {by} it should be {list(parameter.shape)}"
    return None


def read_shapes(folder: Path) -> Iterator[tuple[str, torch.Size]]:
    """Yield every tensor's, from the headers of safetensors files."""
    with require_extra("serve"):
        from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            yield from ((name, torch.Size(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118


def list_settings(config: Any) -> list[tuple[str, Any]]:
    """Return the language model's fields."""
    return list(config.get_text_config().to_dict().items())


def may_explain_width(name: str, value: object, expected: int, stored: int) -> bool:
    """Return True if this field explains why a matrix should be `expected` wide: it equals that width, or it is a
    number of heads that divides that width and not the other."""
    if isinstance(value, bool) or not isinstance(value, int) or name.endswith("_id"):
        return False
    return value == expected or ("heads" in name and value > 1 and expected % value == 0 != stored % value)
