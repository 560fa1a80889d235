"""Resolves `--model`, in this order: nothing, a folder, a GGUF file, a hub id. Downloads and converts as needed."""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.base.stand_ins import refuse_stand_in
from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models.default import DEFAULT_NAME, fetch_default
from tailrace.models.folder import pick_weight_format, prepare_folder
from tailrace.models.gguf import convert_gguf, name_model
from tailrace.models.hub import HUB_ID, fetch_snapshot
from tailrace.models.local import LocalModel, check_folder
from tailrace.models.progress import Progress

ONLY_CPU = "model.weights quantized and model.quantize have kernels on the CPU only"


def resolve(config: ModelConfig, progress: bool = True) -> LocalModel:
    """Return the model that `config.model` names, as a complete folder on this machine, and the name that clients use
    for it.

    A folder is named by its last part, a GGUF file by its stem, a hub id by itself; config.name overrides.

    Raises:
        ModelLoadError: the message says what was looked for, what is missing and what to do.
        ConfigError: the device has no kernels for these weights.
    """
    cache_dir, precision = Path(config.cache_dir).expanduser(), (config.dtype, config.weights)
    if pick_weight_format(config) != "dequantized" and config.device.startswith("cuda"):
        raise ConfigError(f"{ONLY_CPU}; leave them out on a GPU")
    with Progress(progress) as bar:
        if config.model is None:
            refuse_quantize(config, "the default model")
            file = fetch_default(cache_dir, bar)
            folder = convert_gguf(file, cache_dir, precision, bar, DEFAULT_NAME)
            return LocalModel(folder, config.name or DEFAULT_NAME)
        path = Path(config.model).expanduser()
        if path.is_dir():
            folder = check_folder(path.resolve())
            return LocalModel(prepare_folder(folder, config, bar, folder.name), config.name or folder.name)
        if path.is_file():
            refuse_quantize(config, path.name)
            name = name_model(path)
            folder = convert_gguf(path.absolute(), cache_dir, precision, bar, name)
            return LocalModel(folder, config.name or name)
        refuse_stand_in(path)
        if looks_like_path(config.model):
            raise ModelLoadError(f"there is no file or folder {config.model}")
        folder = fetch_snapshot(config.model, remote_code=config.trust_remote_code, progress=progress)
        return LocalModel(prepare_folder(folder, config, bar, config.model), config.name or config.model)


def refuse_quantize(config: ModelConfig, name: str) -> None:
    """Raise ModelLoadError if a GGUF file should be quantized."""
    if config.quantize != "none":
        raise ModelLoadError(
            f"model.quantize is for folders of plain floats, and {name} is a GGUF file, whose blocks --weights "
            "quantized keeps"
        )


def looks_like_path(name: str) -> bool:
    """Return True for what can't be a hub id, which has exactly one slash and no leading dot, slash or tilde."""
    return name.startswith((".", "~", os.sep)) or name.endswith(".gguf") or not HUB_ID.match(name)
