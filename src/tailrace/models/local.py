"""A model folder in Hugging Face's layout, and the check that it is complete."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tailrace.base.adapter_files import ADAPTER_CONFIG
from tailrace.base.json_files import read_object
from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import ModelLoadError, format_json

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
    for name in INDEXES:
        if os.path.lexists(folder / name):
            return list_indexed(folder, name)
    return [name for name in WEIGHTS if (folder / name).is_file()][:1]


def list_indexed(folder: Path, index: str) -> list[str]:
    """Return the names of the files that an index of weights names.

    Raises:
        ModelLoadError: the index is no table of files of this folder.
    """
    names = read_object(folder / index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ModelLoadError(f"{folder}: the weight_map of {index} is no table of tensors and their files")
    if outside := [name for name in names.values() if not is_file_name(name)]:
        raise ModelLoadError(f"{folder}: {index} names {outside[0]!r:.80}, which is no file of it")
    return sorted(set(names.values()))


def is_file_name(name: str) -> bool:
    """Return whether this is the name of a file in a folder, and no path out of it."""
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0")


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
    config = folder / ADAPTER_CONFIG
    if not config.is_file() or (folder / "config.json").is_file():
        return
    try:
        base = read_object(config).get("base_model_name_or_path")
    except ModelLoadError:
        base = None
    known = base if isinstance(base, str) and base else "BASE"
    raise ModelLoadError(
        f"{folder} is an adapter, not a model: serve its base model with it, "
        f"--model {known:.200} --lora {folder.name}={folder}"
    )


def refuse_other_weights(folder: Path) -> None:
    """Raise ModelLoadError if config.json names the file of weights: nothing but the usual ones is checked here."""
    named = read_object(folder / "config.json").get("transformers_weights")
    if named not in (None, INDEXES[0], WEIGHTS[0]):
        raise ModelLoadError(
            f"{folder}: config.json: transformers_weights must be {WEIGHTS[0]} or {INDEXES[0]}, "
            f"got {format_json(named)}"
        )


def check_folder(folder: Path) -> Path:
    """Return the folder itself.

    Raises:
        ModelLoadError: files are missing (the message names all of them), the index can't be read, or there is
            something else where a file should be.
    """
    refuse_adapter(folder)
    for name in (*SETTINGS, *TOKENIZERS, *INDEXES, *WEIGHTS):
        refuse_stand_in(folder / name)
    lacks = list_missing_files(folder)
    if lacks:
        found = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"; to load {found[0]}, name that file itself" if found else ""
        raise ModelLoadError(f"{folder} is not a whole model folder: it lacks {'; '.join(lacks)}{hint}")
    refuse_other_weights(folder)
    for name in weight_names(folder):
        refuse_stand_in(folder / name)
    return folder
