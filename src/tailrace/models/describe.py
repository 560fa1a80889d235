"""What a model folder's JSON files say: vocabulary size, context length, tokens that end a text, sampling defaults.

Imports neither torch nor transformers: a front end reads this in milliseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tailrace.errors import ConfigError, ModelLoadError, ParameterError
from tailrace.params import check_range
from tailrace.wire.messages import ModelInfo

# where a multimodal model keeps its language model's settings
NESTED = ("text_config", "llm_config", "language_config")
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length")
# these multiply the context by `factor`; in other types the stated length includes the scaling
SCALED_ROPE = ("yarn", "linear", "dynamic")
SAMPLED_ONLY = ("temperature", "top_p", "top_k", "min_p")
NO_LIMIT = 10**9  # tokenizers without a limit write a huge model_max_length


class AddedToken(msgspec.Struct):
    """An entry of tokenizer.json's added_tokens."""

    id: int
    content: str


class TokenizerFile(msgspec.Struct):
    """The part of tokenizer.json that is read; the vocabulary stays unparsed until it is needed."""

    added_tokens: list[AddedToken] = []
    model: msgspec.Raw = msgspec.Raw()


class TokenizerModel(msgspec.Struct):
    """tokenizer.json's model: token → id (BPE, WordPiece) or (token, score) in order (Unigram)."""

    vocab: dict[str, int] | list[tuple[str, float]] = {}


def describe(folder: Path, name: str, max_model_len: int = 0) -> ModelInfo:
    """The ModelInfo of a folder. `max_model_len` 0 takes the model's own context length.

    Raises:
        ModelLoadError: config.json can't be read or lacks the vocabulary size.
        ConfigError: max_model_len exceeds the model's context, or is needed because the model states none.
    """
    config = read_json(folder, "config.json", required=True)
    text = language_config(config)
    if not isinstance(text.get("vocab_size"), int):
        raise ModelLoadError(f"{folder / 'config.json'} has no vocab_size")
    limit = context_length(text) or tokenizer_limit(folder)
    if not limit and not max_model_len:
        raise ConfigError(f"{folder / 'config.json'} states no context length: give one with max_model_len")
    if limit and max_model_len > limit:
        raise ConfigError(f"max_model_len must be at most the model's context of {limit} tokens, got {max_model_len}")
    return ModelInfo(name, text["vocab_size"], max_model_len or limit, eos_token_ids(folder))


def defaults(folder: Path) -> dict[str, float | int]:
    """The sampling defaults of generation_config.json, as fields of SamplingParams; empty if it has none.

    temperature, top_p, top_k and min_p count only if the file says do_sample, as in transformers; repetition_penalty
    always. A server uses them for fields that a request leaves out, unless it is told not to.

    Raises:
        ModelLoadError: the file has a value out of range.
    """
    config = read_json(folder, "generation_config.json")
    names = (*SAMPLED_ONLY, "repetition_penalty") if config.get("do_sample") else ("repetition_penalty",)
    found = {name: config[name] for name in names if config.get(name) is not None}
    for field, value in found.items():
        try:
            check_range(field, value)
        except ParameterError as error:
            raise ModelLoadError(f"{folder / 'generation_config.json'}: {error}") from error
    return found


def eos_token_ids(folder: Path) -> list[int]:
    """Every id that config.json, generation_config.json or the tokenizer calls the end, in ascending order."""
    config = read_json(folder, "config.json", required=True)
    stated = (
        config.get("eos_token_id"),
        language_config(config).get("eos_token_id"),
        read_json(folder, "generation_config.json").get("eos_token_id"),
        tokenizer_eos(folder),
    )
    ids: set[int] = set()
    for entry in stated:
        ids.update(entry if isinstance(entry, list) else [] if entry is None else [entry])
    return sorted(ids)


def context_length(config: dict[str, Any]) -> int:
    """The positions that the model was made for, with scaled rotary embeddings; 0 if config states none."""
    length = next((config[key] for key in CONTEXT_KEYS if isinstance(config.get(key), int)), 0)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    if kind in SCALED_ROPE and isinstance(rope.get("factor"), int | float):
        length = int((rope.get("original_max_position_embeddings") or length) * rope["factor"])
    return length


def tokenizer_limit(folder: Path) -> int:
    """The tokenizer's model_max_length, for configs that state no context; 0 if it knows none either."""
    limit = read_json(folder, "tokenizer_config.json").get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 0 < limit < NO_LIMIT else 0


def tokenizer_eos(folder: Path) -> int | None:
    """The id of the tokenizer's eos_token, or None."""
    config = read_json(folder, "tokenizer_config.json")
    token = config.get("eos_token") or read_json(folder, "special_tokens_map.json").get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if token is None:
        return None
    for number, entry in (config.get("added_tokens_decoder") or {}).items():
        if entry.get("content") == token:
            return int(number)
    fast = fast_token_id(folder / "tokenizer.json", token)
    return plain_token_id(folder, token) if fast is None else fast


def fast_token_id(path: Path, token: str) -> int | None:
    """The id of `token` in a tokenizer.json: among the added tokens (nearly always), or in the vocabulary."""
    if not path.is_file():
        return None
    try:
        file = msgspec.json.decode(path.read_bytes(), type=TokenizerFile)
        added = next((entry.id for entry in file.added_tokens if entry.content == token), None)
        if added is not None or not bytes(file.model):
            return added
        vocab = msgspec.json.decode(file.model, type=TokenizerModel).vocab
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
    if isinstance(vocab, dict):
        return vocab.get(token)
    return next((number for number, (entry, _) in enumerate(vocab) if entry == token), None)


def plain_token_id(folder: Path, token: str) -> int | None:
    """The id of `token` in the files of a tokenizer without tokenizer.json."""
    found = (read_json(folder, name).get(token) for name in ("added_tokens.json", "vocab.json"))
    return next((number for number in found if number is not None), None)


def language_config(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of the language model; nested ones go before those at the top."""
    nested = next((config[key] for key in NESTED if isinstance(config.get(key), dict)), {})
    return {**config, **nested}


def read_json(folder: Path, name: str, *, required: bool = False) -> dict[str, Any]:
    """A JSON object; {} if the file is not there and not required.

    Raises:
        ModelLoadError: it is required and missing, or it is not a JSON object.
    """
    path = folder / name
    if not path.is_file() and not required:
        return {}
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} should hold a JSON object, but holds a {type(value).__name__}")
    return value
