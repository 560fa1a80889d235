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

from tailrace.errors import ModelLoadError
from tailrace.models.child import not_all_there
from tailrace.models.convert_quantized import owners


class Owned(NamedTuple):
    """A parameter of plain linear layers or the embedding. first: the first of its names; name: the one that was asked
    for, another one where weights are tied."""

    first: str
    name: str
    shape: tuple[int, ...]


Owner = Callable[[str], Owned | None]


Renamer = Callable[[str], tuple[str, str | None]]


def meta_model(folder: Path, remote_code: bool) -> Any:
    """The folder's model without memory, its modules plain."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=remote_code)
        vars(config).pop("quantization_config", None)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=remote_code)
    except Exception as error:  # whatever a model's code raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelLoadError(f"transformers can't build a model from its config.json: {reason}") from error


def renamer(model: Any) -> tuple[Renamer, bool]:
    """A function: the name of a checkpoint's tensor → the model's name, and what it is merged by, if it is; whether any
    are."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    state, mapping = model.state_dict(), get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]

    def rename(name: str) -> tuple[str, str | None]:
        target, merged = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if target not in state and name in state:
            target, merged = rename_source_key(name, [], [], model.base_model_prefix, state)
        return target, merged

    return rename, bool(converters)


def owner_of(model: Any, rename: Renamer) -> Owner:
    """A function: the name of a checkpoint's tensor → the parameter that it becomes as it is, if that is such a one."""
    found = {
        f"{path}.weight": Owned(name, f"{path}.weight", tuple(parameter.shape))
        for name, parameter, sharing in owners(model)
        for path, module in model.named_modules()
        if any(module is one for one in sharing) and suits(model, module)
    }

    def owner(name: str) -> Owned | None:
        target, merged = rename(name)
        return None if merged else found.get(target)

    return owner


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


def suits(model: Any, module: nn.Module) -> bool:
    """Linear layers and the embedding of tokens. Other embeddings (of positions) are small and need their precision."""
    return isinstance(module, nn.Linear) or module is model.get_input_embeddings()
