"""A folder's named tokens (`bos_token` …), and the tokens that it adds to its tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.base.extras import require_extra
from tailrace.base.json_files import read_optional_object
from tailrace.errors import ModelLoadError

if TYPE_CHECKING:
    import tokenizers

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def named_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the tokens with names, as templates see them, as in transformers.

    They are the usual names, the entries of tokenizer_config.json that end in `_token`, and the named ones of its
    `extra_special_tokens`. special_tokens_map.json has priority, unless tokenizer_config.json lists its tokens
    (`added_tokens_decoder`).
    """
    older = {} if "added_tokens_decoder" in config else read_optional_object(folder / MAP)
    found: dict[str, str] = {}
    for held in (config, older):
        extra = held.get("extra_special_tokens")
        for name, token in {**held, **(extra if isinstance(extra, dict) else {})}.items():
            text = token.get("content") if isinstance(token, dict) else token
            named = name in NAMES or name.endswith("_token") or (isinstance(extra, dict) and name in extra)
            if named and isinstance(text, str):
                found[name] = text
    return found


def add_tokens(backend: tokenizers.Tokenizer, folder: Path, config: dict[str, Any]) -> None:
    """Add the tokens that the folder lists outside of tokenizer.json: `added_tokens_decoder` of tokenizer_config.json,
    or added_tokens.json.

    Raises:
        ModelLoadError: the tokenizer gives a token another id than the folder.
    """
    with require_extra("text"):
        from tokenizers import AddedToken

    listed = config.get("added_tokens_decoder") or {}
    if not listed:
        special = set(named_tokens(folder, config).values())
        ids = read_optional_object(folder / ADDED)
        listed = {id: {"content": token, "special": token in special} for token, id in ids.items()}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for id, entry in sorted(((int(id), entry) for id, entry in listed.items()), key=lambda pair: pair[0]):
        if (content := entry["content"]) in known:
            continue
        flags = {name: entry[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in entry}
        backend.add_tokens([AddedToken(content, special=entry.get("special", False), **flags)])
        if (given := backend.token_to_id(content)) != id:
            raise ModelLoadError(
                f"{folder}: the added token {content!r} should have the id {id}, but tokenizer.json leaves it {given}"
            )
