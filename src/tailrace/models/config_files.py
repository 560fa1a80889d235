"""A model folder's JSON files: how they are read, where the language model's settings are, and names of sizes.

Imports neither torch nor transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.base.json_files import read_object, read_optional_object

# where a multimodal model keeps its language model's settings
NESTED = ("text_config", "llm_config", "language_config")
# names that config.json has for one size
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
WIDTH = ("hidden_size", "n_embd", "d_model")


def language_config(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of the language model; nested ones go before those at the top."""
    return {**config, **nested_config(config)}


def nested_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's own section of a multimodal model's settings; {} without one."""
    return next((config[key] for key in NESTED if isinstance(config.get(key), dict)), {})


def read_json(folder: Path, name: str, *, required: bool = False) -> dict[str, Any]:
    """A JSON object; {} if the file is not there and not required.

    Raises:
        ModelLoadError: it is required and missing, or it is not a JSON object.
    """
    return read_object(folder / name) if required else read_optional_object(folder / name)


def find_first_number(config: dict[str, Any], names: tuple[str, ...]) -> int:
    """Return the value of the first of these names that config has as an integer; 0 if config has no such name."""
    return next((value for name in names if isinstance(value := config.get(name), int)), 0)
