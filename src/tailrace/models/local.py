"""A model folder in Hugging Face's layout, and the check that it is complete."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import ModelLoadError

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")  # sharded weights: parameter → file
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
SETTINGS += ("added_tokens.json", "chat_template.jinja", "chat_template.json", "processor_config.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")  # any one will do


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A folder that `check_folder` accepts, and the name clients use for it."""

    folder: Path
    name: str


def weight_names(folder: Path) -> list[str]:
    """Return the files of weights that the folder should have: those of its index, or the first of the usual names that
    exists; empty if it has neither."""
    index = next((folder / name for name in INDEXES if (folder / name).is_file()), None)
    if index is not None:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return [name for name in WEIGHTS if (folder / name).is_file()][:1]


def list_missing_files(folder: Path) -> list[str]:
    """Return what the folder lacks, a phrase each; empty if it lacks nothing."""
    lacks = [] if (folder / "config.json").is_file() else ["config.json"]
    names = weight_names(folder)
    lacks += [name for name in names if not (folder / name).is_file()]
    if not names:
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
    """Return the folder itself.

    Raises:
        ModelLoadError: files are missing (the message names all of them), the index can't be read, or there is
            something else where a file should be.
    """
    refuse_adapter(folder)
    for name in (*SETTINGS, *TOKENIZERS, *INDEXES):
        refuse_stand_in(folder / name)
    try:
        lacks = list_missing_files(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{folder}: its weight index can't be read: {error}") from error
    if lacks:
        found = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"; to load {found[0]}, name that file itself" if found else ""
        raise ModelLoadError(f"{folder} is not a whole model folder: it lacks {'; '.join(lacks)}{hint}")
    for name in weight_names(folder):
        refuse_stand_in(folder / name)
    return folder
