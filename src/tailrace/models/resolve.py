"""Resolves `--model`, in this order: nothing, a folder, a GGUF file, a hub id. Downloads and converts as needed."""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models.default import DEFAULT_NAME, fetch_default
from tailrace.models.gguf import convert
from tailrace.models.hub import HUB_ID, fetch_snapshot
from tailrace.models.local import LocalModel, check_folder
from tailrace.models.progress import Progress


def resolve(config: ModelConfig, progress: bool = True) -> LocalModel:
    """The model that `config.model` names, as a complete folder on this machine, and the name that clients use for it.

    A folder is named by its last part, a GGUF file by its stem, a hub id by itself; config.name overrides.

    Raises:
        ModelLoadError: the message says what was looked for, what is missing and what to do.
        ConfigError: the device has no kernels for these weights.
    """
    cache_dir, precision = Path(config.cache_dir).expanduser(), (config.dtype, config.weights)
    if config.weights == "quantized" and config.device.startswith("cuda"):
        raise ConfigError("model.weights quantized has kernels on the CPU only; use dequantized on a GPU")
    with Progress(progress) as bar:
        if config.model is None:
            file = fetch_default(cache_dir, bar)
            folder = convert(file, cache_dir, precision, bar, DEFAULT_NAME)
            return LocalModel(folder, config.name or DEFAULT_NAME)
        path = Path(config.model).expanduser()
        if config.weights == "quantized" and (path.is_dir() or not looks_like_path(config.model)):
            raise ModelLoadError(f"model.weights quantized is for GGUF files, and {config.model} is none")
        if path.is_dir():
            return LocalModel(check_folder(path.resolve()), config.name or path.resolve().name)
        if path.is_file():
            folder = convert(path.resolve(), cache_dir, precision, bar, path.stem)
            return LocalModel(folder, config.name or path.stem)
        if looks_like_path(config.model):
            raise ModelLoadError(f"there is no file or folder {config.model}")
        folder = fetch_snapshot(config.model, remote_code=config.trust_remote_code, progress=progress)
        return LocalModel(folder, config.name or config.model)


def looks_like_path(name: str) -> bool:
    """True for what can't be a hub id, which has exactly one slash and no leading dot, slash or tilde."""
    return name.startswith((".", "~", os.sep)) or name.endswith(".gguf") or not HUB_ID.match(name)
