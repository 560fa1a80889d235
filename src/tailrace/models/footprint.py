"""The memory that a model takes, computed from its files without loading it: its weights, and a block of its KV cache.
Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

from tailrace.base.adapter_files import ADAPTER_WEIGHTS
from tailrace.base.mtp import HEAD_FILE, SHARED, is_assistant_type, is_of_head
from tailrace.models.class_settings import read_language_settings
from tailrace.models.config_files import (
    HEADS,
    LAYERS,
    WIDTH,
    find_first_number,
    language_config,
    nested_config,
    read_json,
)
from tailrace.models.local import list_indexed
from tailrace.models.tensors import BLOCKS_METHOD, FLOATS, SIZES, index_tensors

# by quant_method: how many floats become of an entry, where transformers widens it at load
WIDENED = {"fp8": {"F8_E4M3": 1, "F8_E5M2": 1}, "mxfp4": {"U8": 2}}
SCALE_BYTES = 4  # of keys, or of values, in eight bits: a float32 per token and head
KEY_PROJECTION = "self_attn.k_proj.weight"
PANEL = 64  # outputs that the CPU's kernels pack together


def weights_bytes(folder: Path, itemsize: int, packed: bool) -> int:
    """Bytes of a folder's weights once loaded, without those of an MTP head, with floats of `itemsize` bytes. packed:
    an output projection that shares the embedding's weights gets a copy (runners/fuse.py).

    Raises:
        ModelLoadError: a file of weights can't be read.
    """
    whole = read_json(folder, "config.json", required=True)
    config = read_language_settings(folder, (("vocab_size",), WIDTH)) if packed else {}
    stated = whole.get("quantization_config")
    blocks = stated if isinstance(stated, dict) else {}
    widened = WIDENED.get(str(blocks.get("quant_method")), {})
    sizes = SIZES | dict.fromkeys(FLOATS, itemsize) | {kind: count * itemsize for kind, count in widened.items()}
    layers = count_layers(whole)
    total = sum(
        tensors_bytes(path, sizes, wanted=lambda name: not is_of_head(name, layers)) for path in weight_files(folder)
    )
    total = total or sum(path.stat().st_size for path in folder.glob("pytorch_model*.bin"))
    tied = bool(config.get("tie_word_embeddings", True)) and packed
    if blocks.get("quant_method") == BLOCKS_METHOD:  # shared blocks are packed once
        total += blocks["packed_bytes"] - blocks["raw_bytes"]
        tied = tied and not any(rows == [config.get("vocab_size")] for *rows, _ in blocks["shapes"].values())
    return total + (tied * itemsize * (config.get("vocab_size") or 0) * find_first_number(config, WIDTH))


def head_bytes(folder: Path, itemsize: int) -> int:
    """Bytes of the folder's MTP head once loaded, or of its assistant; 0 if it has none. The head uses the model's
    embedding and output head.

    Raises:
        ModelLoadError: a file can't be read.
    """
    config, further = read_json(folder, "config.json", required=True), folder / HEAD_FILE
    if is_assistant_type(config):
        return weights_bytes(folder, itemsize, packed=False)
    layers = count_layers(config)
    sizes = SIZES | dict.fromkeys((*FLOATS, *WIDENED["fp8"]), itemsize)
    files = {*weight_files(folder), *([further] if further.exists() else [])}
    return sum(
        tensors_bytes(path, sizes, wanted=lambda name: is_of_head(name, layers) and not name.endswith(SHARED))
        for path in files
    )


def count_layers(config: dict[str, Any]) -> int:
    """Return the number of layers that config.json states for the language model; 0: none."""
    return find_first_number(language_config(config), LAYERS)


def adapters_bytes(folders: Iterable[str | Path], itemsize: int, packed: bool) -> int:
    """The same of LoRA adapters. One that has no file counts nothing: who loads it says so. packed: a matrix is filled
    up to whole panels of outputs, as the CPU's kernels have it.

    Raises:
        ModelLoadError: a file of weights can't be read.
    """
    sizes = SIZES | dict.fromkeys(FLOATS, itemsize)
    rows = PANEL if packed else 1
    return sum(
        tensors_bytes(path, sizes, rows) for folder in folders if (path := Path(folder) / ADAPTER_WEIGHTS).is_file()
    )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that are loaded, as transformers chooses them: the file of the usual name, or else
    the files of the index. Files of other names count only if both are missing: they may have another format.

    Raises:
        ModelLoadError: the index is no table of files of this folder.
    """
    whole, index = folder / "model.safetensors", "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if "weight_map" in read_json(folder, index):
        return [folder / name for name in list_indexed(folder, index)]
    return list(folder.glob("model*.safetensors")) or list(folder.glob("*.safetensors"))


def tensors_bytes(
    path: Path, sizes: dict[str, int], rows: int = 1, wanted: Callable[[str], bool] = lambda name: True
) -> int:
    """Bytes of the tensors in one safetensors file, from its header. sizes: of an entry, by dtype. rows: a tensor has a
    multiple of so many once it is loaded. wanted: which tensors count, by name."""
    return sum(
        prod((-(-tensor.shape[0] // rows) * rows, *tensor.shape[1:]) if tensor.shape else ())
        * sizes.get(tensor.dtype, 1)
        for tensor in index_tensors(path).values()
        if wanted(tensor.name)
    )


def block_bytes(folder: Path, block_size: int, itemsize: int, scale_bytes: int = 0) -> int:
    """Bytes of one KV-cache block over all layers, for a model whose layers are alike. scale_bytes: beside the keys of
    each token's head, and beside its values.

    Raises:
        ModelLoadError: config.json can't be read.
    """
    config = read_language_settings(folder, (LAYERS, HEADS, WIDTH, ("num_key_value_heads",)))
    if config.get("head_dim") is None:
        rows, heads = count_key_rows(folder, find_first_number(config, WIDTH)), config.get("num_key_value_heads")
        found = {"head_dim": rows // heads} if rows and heads else read_language_settings(folder, (("head_dim",),))
        config = {**config, **found}
    heads = find_first_number(config, HEADS)
    head_dim = config.get("head_dim") or (find_first_number(config, WIDTH) // heads if heads else 0)
    kv_heads = config.get("num_key_value_heads") or heads
    return 2 * find_first_number(config, LAYERS) * kv_heads * (head_dim * itemsize + scale_bytes) * block_size


def count_key_rows(folder: Path, width: int) -> int:
    """Return the number of outputs of a layer's key projection, from a safetensors header.

    0 if no matrix of that name has `width` inputs, or if the folder holds more than a language model. Most config.json
    files do not state head_dim, and asking transformers for it takes seconds.

    Raises:
        ModelLoadError: a file of weights can't be read.
    """
    if nested_config(read_json(folder, "config.json", required=True)):
        return 0
    tensors = (tensor for path in weight_files(folder) for tensor in index_tensors(path).values())
    shapes = (tensor.shape for tensor in tensors if tensor.name.endswith(KEY_PROJECTION))
    return next((shape[0] for shape in shapes if len(shape) == 2 and shape[1] == width), 0)
