"""What a model's folder says of itself: vocabulary, context length, which tokens end a sequence, default sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.errors import ModelLoadError
from tailrace.wire.messages import ModelInfo

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
FALLBACK_CONTEXT = 2048
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the folder, {} if there is none.

    Raises:
        ModelLoadError: it is not JSON.
    """
    try:
        return json.loads((folder / name).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{folder / name}: {error}") from error


def describe(folder: Path, name: str, max_model_len: int = 0) -> ModelInfo:
    """What front ends are told. max_model_len lowers the context length; 0 leaves it.

    Raises:
        ModelLoadError: no config.json, or one without a vocabulary; ConfigError comes from whoever passed max_model_len.
    """
    config = read(folder, "config.json")
    text = config.get("text_config") or config
    if "vocab_size" not in text:
        raise ModelLoadError(f"{folder} has no config.json with a vocab_size")
    context = next((int(text[key]) for key in CONTEXT_KEYS if text.get(key)), FALLBACK_CONTEXT)
    return ModelInfo(name, int(text["vocab_size"]), min(context, max_model_len or context), eos_token_ids(folder))


def eos_token_ids(folder: Path) -> list[int]:
    """Every id that ends a sequence: the union of what config, generation config and tokenizer say."""
    config = read(folder, "config.json")
    found: set[int] = set()
    for source in (config, config.get("text_config") or {}, read(folder, "generation_config.json")):
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    token = read(folder, "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    for added in read(folder, "tokenizer.json").get("added_tokens", []):
        if added.get("content") == content:
            found.add(added["id"])
    return sorted(found)


def defaults(folder: Path) -> dict[str, float | int]:
    """Sampling fields that the generation config sets, if it asks for sampling at all; names as in SamplingParams."""
    config = read(folder, "generation_config.json")
    if not config.get("do_sample"):
        return {}
    return {key: config[key] for key in SAMPLING_KEYS if config.get(key) is not None}
