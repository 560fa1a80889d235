"""A folder's model without memory: which parameter a checkpoint's tensor becomes, and which of them it lacks. Part of
convert_folder.py's process; imports torch and transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tailrace.base.mtp import is_of_head
from tailrace.errors import ModelLoadError, take_first_line
from tailrace.models.auto_class import find_auto_class, load_auto_config
from tailrace.models.child import not_all_there
from tailrace.models.convert_quantized import list_expert_matrices, list_owned_matrices


class Owned(NamedTuple):
    """A parameter of plain linear layers or the embedding. first: the first of its names; name: the one that was asked
    for, another one where weights are tied."""

    first: str
    name: str
    shape: tuple[int, ...]


Owner = Callable[[str], Owned | None]


Renamer = Callable[[str], tuple[str, str | None]]


def meta_model(folder: Path, remote_code: bool) -> Any:
    """Return the folder's model without memory, its modules plain."""
    try:
        config = load_auto_config(folder, remote_code)
        vars(config).pop("quantization_config", None)
        with torch.device("meta"):
            return find_auto_class(config).from_config(config, trust_remote_code=remote_code)
    except Exception as error:  # whatever a model's code raises
        reason = take_first_line(error)
        raise ModelLoadError(f"transformers can't build a model from its config.json: {reason}") from error


class CheckpointNames(NamedTuple):
    """How a checkpoint's tensors become the model's.

    - rename: a function from a tensor's name to the model's name and to what it is merged by, if it is.
    - merges: whether any tensors are merged. stacks: what merges whole rows of experts' matrices, in any dtype.
    """

    rename: Renamer
    merges: bool
    stacks: frozenset[str]


def read_names(model: Any) -> CheckpointNames:
    """Return what transformers does with the names of a model's checkpoint."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    state, mapping = model.state_dict(), get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]

    def rename_tensor(name: str) -> tuple[str, str | None]:
        target, merged = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if target not in state and name in state:
            target, merged = rename_source_key(name, [], [], model.base_model_prefix, state)
        return target, merged

    patterns: dict[bool, set[str]] = {True: set(), False: set()}
    for entry in converters:
        patterns[all(map(stacks_rows, entry.operations))].update(entry.source_patterns)
    return CheckpointNames(rename_tensor, bool(converters), frozenset(patterns[True] - patterns[False]))


def stacks_rows(operation: Any) -> bool:
    """Return True if an operation of transformers puts experts' matrices one behind the other, or the rows of an
    expert's matrices one below the other."""
    return (type(operation).__name__, operation.__dict__.get("dim")) in (("MergeModulelist", 0), ("Concatenate", 1))


def owner_of_experts(model: Any, names: CheckpointNames) -> Owner:
    """Return a function from a checkpoint tensor's name to the matrices of experts [E, N, K] of which it has rows, or
    None."""
    found = {
        name: tuple(getattr(module, name.rpartition(".")[2]).shape)
        for name, module in list_expert_matrices(model)
        if not module.is_transposed and not is_further(model, name)
    }

    def find_owner(name: str) -> Owned | None:
        target, merged = names.rename(name)
        whole = target in found and (merged is None or merged in names.stacks)
        return Owned(target, target, found[target]) if whole else None

    return find_owner


def owner_of(model: Any, rename: Renamer) -> Owner:
    """Return a function from a checkpoint tensor's name to the parameter that it fills unchanged, or None."""
    found = {
        f"{path}.weight": Owned(name, f"{path}.weight", tuple(parameter.shape))
        for name, parameter, sharing in list_owned_matrices(model)
        for path, module in model.named_modules()
        if not is_further(model, path) and any(module is one for one in sharing) and is_quantizable(model, module)
    }

    def find_owner(name: str) -> Owned | None:
        target, merged = rename(name)
        return None if merged else found.get(target)

    return find_owner


def is_further(model: Any, name: str) -> bool:
    """Return True for the name of a parameter or module of an MTP head, which some models' own code makes. The drafter
    reads the head in floats."""
    return is_of_head(name, getattr(model.config.get_text_config(), "num_hidden_layers", -1))


def refuse_missing(model: Any, rename: Renamer, names: Iterable[str]) -> None:
    """Raise ModelLoadError if a checkpoint with tensors of these names lacks some of the model's: transformers would
    make them up. Asked before the conversion, which takes long."""
    there, ignored = {rename(name)[0] for name in names}, model._keys_to_ignore_on_load_missing or ()
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    missing = sorted(
        same[0]
        for same in aliases.values()
        if there.isdisjoint(same) and not any(re.search(pattern, same[0]) for pattern in ignored)
    )
    if missing:
        raise ModelLoadError(not_all_there(missing))


def is_quantizable(model: Any, module: nn.Module) -> bool:
    """Return True for linear layers and the embedding of tokens. Other embeddings (of positions) are small and need
    their precision."""
    return isinstance(module, nn.Linear) or module is model.get_input_embeddings()
