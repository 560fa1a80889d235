"""What a model folder's JSON files say: vocabulary size, context length, tokens that end a text, sampling defaults.

Imports neither torch nor transformers: a front end reads this in milliseconds, unless config.json leaves a size to the
model's class (class_settings.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tailrace.errors import ConfigError, ModelLoadError, ParameterError
from tailrace.models.class_settings import read_language_settings
from tailrace.models.config_files import language_config, read_json
from tailrace.models.context import CONTEXT_KEYS, context_length
from tailrace.params import check_range
from tailrace.wire.messages import ModelInfo

# fields of generation_config.json that are sampling defaults, and what SamplingParams calls them
SAME = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
DEFAULTS = {name: name for name in SAME} | {"max_new_tokens": "max_tokens"}
MAX_ID = 2**31 - 1
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


def describe(folder: Path, name: str, max_model_len: int = 0, remote_code: bool = False) -> ModelInfo:
    """Return the ModelInfo of a folder.

    Args:
        max_model_len: 0 takes the model's own context length.
        remote_code: the folder's own code may run, if config.json leaves sizes to it.

    Raises:
        ModelLoadError: config.json can't be read or lacks the vocabulary size.
        ConfigError: max_model_len exceeds the model's context, or is needed because the model states none.
    """
    text = read_language_settings(folder, (("vocab_size",), CONTEXT_KEYS), remote_code)
    if not isinstance(text.get("vocab_size"), int):
        raise ModelLoadError(f"{folder / 'config.json'} has no vocab_size")
    limit = stated_context(folder, text) or tokenizer_limit(folder)
    if not limit and not max_model_len:
        raise ConfigError(f"{folder / 'config.json'} states no context length: give one with max_model_len")
    if limit and max_model_len > limit:
        raise ConfigError(f"max_model_len must be at most the model's context of {limit} tokens, got {max_model_len}")
    return ModelInfo(name, text["vocab_size"], max_model_len or limit, eos_token_ids(folder))


def defaults(folder: Path) -> dict[str, float | int]:
    """Return the sampling defaults of generation_config.json, as fields of SamplingParams; {} if it states none.

    The fields that vLLM takes count, whether or not the file says do_sample, as in vLLM. A server uses the defaults for
    fields that a request leaves out, unless its settings turn this off.

    Raises:
        ModelLoadError: the file has a value out of range.
    """
    config = read_json(folder, "generation_config.json")
    found = {name: config[name] for name in DEFAULTS if config.get(name) is not None}
    for name, value in found.items():
        try:
            check_range(DEFAULTS[name], value, name)
        except ParameterError as error:
            raise ModelLoadError(f"{folder / 'generation_config.json'}: {error}") from error
    return {DEFAULTS[name]: value for name, value in found.items()}


def eos_token_ids(folder: Path) -> list[int]:
    """Every id that config.json, generation_config.json or the tokenizer calls the end, in ascending order. If none of
    them does, the ends of the model's class."""
    config = read_json(folder, "config.json", required=True)
    stated = [
        ("config.json", config.get("eos_token_id")),
        ("config.json", language_config(config).get("eos_token_id")),
        ("generation_config.json", read_json(folder, "generation_config.json").get("eos_token_id")),
        ("the tokenizer", tokenizer_eos(folder)),
    ]
    if not any(entry is not None for _, entry in stated):
        stated = [("config.json", read_language_settings(folder, (("eos_token_id",),)).get("eos_token_id"))]
    ids: set[int] = set()
    for where, entry in stated:
        for id in entry if isinstance(entry, list) else [] if entry is None else [entry]:
            if type(id) is not int or not 0 <= id <= MAX_ID:
                raise ModelLoadError(f"{folder}: {where}: eos_token_id must be token ids, got {id!s:.80}")
            ids.add(id)
    return sorted(ids)


def stated_context(folder: Path, config: dict[str, Any]) -> int:
    """The context length that config.json states; 0 if none. config: the language model's settings.

    Raises:
        ModelLoadError: its rotary embeddings have a factor that is no factor.
    """
    try:
        return context_length(config)
    except ModelLoadError as error:
        raise ModelLoadError(f"{folder / 'config.json'}: {error}") from error


def tokenizer_limit(folder: Path) -> int:
    """The tokenizer's model_max_length, for configs that state no context; 0 if it knows none either."""
    limit = read_json(folder, "tokenizer_config.json").get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 0 < limit < NO_LIMIT else 0


def tokenizer_eos(folder: Path) -> int | None:
    """The id of the tokenizer's eos_token, or None."""
    config = read_json(folder, "tokenizer_config.json")
    token = config.get("eos_token") or read_json(folder, "special_tokens_map.json").get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if not isinstance(token, str):  # transformers takes nothing else for a token either
        return None
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(isinstance(entry, dict) for entry in listed.values()):
        raise ModelLoadError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder is no table of tokens by id")
    for number, entry in listed.items():
        if entry.get("content") == token:
            return parse_id(folder, number)
    fast = fast_token_id(folder / "tokenizer.json", token)
    return plain_token_id(folder, token) if fast is None else fast


def parse_id(folder: Path, number: str) -> int:
    """Return a key of added_tokens_decoder as a token id."""
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise ModelLoadError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has the id {number!r:.80}")
    return int(number)


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
    except RecursionError as error:
        raise ModelLoadError(f"{path} can't be read: its JSON nests too deeply") from error
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
    if isinstance(vocab, dict):
        return vocab.get(token)
    return next((number for number, (entry, _) in enumerate(vocab) if entry == token), None)


def plain_token_id(folder: Path, token: str) -> int | None:
    """The id of `token` in the files of a tokenizer without tokenizer.json."""
    found = (read_json(folder, name).get(token) for name in ("added_tokens.json", "vocab.json"))
    return next((number for number in found if type(number) is int), None)
