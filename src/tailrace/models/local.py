"""A model folder in Hugging Face's layout, and the check that it is complete."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tailrace.errors import ModelLoadError

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")  # sharded weights: parameter → file
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")  # any one will do


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A folder that `check_folder` accepts, and the name clients use for it."""

    folder: Path
    name: str


def missing(folder: Path) -> list[str]:
    """What the folder lacks, in words; empty if nothing."""
    lacks = [] if (folder / "config.json").is_file() else ["config.json"]
    index = next((folder / name for name in INDEXES if (folder / name).is_file()), None)
    if index is not None:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        lacks += [shard for shard in shards if not (folder / shard).is_file()]
    elif not any((folder / name).is_file() for name in WEIGHTS):
        lacks.append(f"weights ({' or '.join(WEIGHTS)})")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        lacks.append(f"a tokenizer ({', '.join(TOKENIZERS)})")
    return lacks


def refuse_adapter(folder: Path) -> None:
    """Raise ModelLoadError if the folder holds a LoRA adapter (PEFT's layout) and no model: say how to serve it."""
    config = folder / "adapter_config.json"
    if not config.is_file() or (folder / "config.json").is_file():
        return
    try:
        base = json.loads(config.read_text())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    raise ModelLoadError(
        f"{folder} is an adapter, not a model: serve its base model with it, "
        f"--model {base or 'BASE'} --lora {folder.name}={folder}"
    )


def check_folder(folder: Path) -> Path:
    """The folder itself.

    Raises:
        ModelLoadError: naming every file that is missing, or the index that can't be read.
    """
    refuse_adapter(folder)
    try:
        lacks = missing(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{folder}: its weight index can't be read: {error}") from error
    if lacks:
        found = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"; to load {found[0]}, name that file itself" if found else ""
        raise ModelLoadError(f"{folder} is not a whole model folder: it lacks {'; '.join(lacks)}{hint}")
    return folder
