"""The tokens of a GGUF file that are no text: which of them end a text, and that each is matched as a whole. Part of
convert.py's process.

transformers spells every token of a byte-level vocabulary in the alphabet of bytes, also DeepSeek's `<｜User｜>`. It
then cuts such a token into pieces where a prompt has it, and appends the first and the last token of texts to the
vocabulary, behind the embedding's rows.
"""

from __future__ import annotations

import json
from typing import Any

from tailrace.models.gguf_fields import Fields

PREFIX = "tokenizer.ggml."
MODEL, TOKENS, KINDS = (f"{PREFIX}{name}" for name in ("model", "tokens", "token_type"))
TEMPLATE = "tokenizer.chat_template"
END_KEYS = tuple(f"{PREFIX}{name}_token_id" for name in ("eos", "eot", "eom"))
CONTROL, USER_DEFINED = 3, 4  # gguf.constants.TokenType
# texts of tokens that end a text, a turn or a call: llama.cpp's list, and GLM's end of a tool call
ENDS = frozenset(
    {
        *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<｜end▁of▁sentence｜>"),
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<EOT>", "_<EOT>", "[EOT]", "[e~["),
        *("<end_of_utterance>", "<|return|>", "<|flush|>"),
        *("<|eom_id|>", "<|call|>", "<|calls|>", "<|tool_response>", "<|observation|>"),
    }
)
# a part's end that ends no turn in vocabularies that have both other tokens
PART_END = "<|end|>"
TURN_ENDS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})


def find_ends(fields: Fields) -> list[int]:
    """Return the ids of all tokens that end a text, in ascending order.

    A file states one to three. A model often has more: Gemma 3's file states `<eos>`, and its turns end with
    `<end_of_turn>`. So do tokens whose text is known to be an end, as in llama.cpp. Such a token counts if it is a
    control token or the chat template writes it. The unknown token does not count.
    """
    stated = {id for key in END_KEYS if (id := fields.get_field(key)) is not None}
    tokens, unknown = fields.get_field(TOKENS, []), fields.get_field(f"{PREFIX}unknown_token_id")
    kinds = fields.get_field(KINDS) or [0] * len(tokens)
    template = "".join(str(fields.get_field(name)) for name in fields.names() if name.startswith(TEMPLATE))
    known = {
        text: id
        for id, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
        if text in ENDS and id != unknown and (kind == CONTROL or text in template)
    }
    if any(both <= known.keys() for both in TURN_ENDS):
        known.pop(PART_END, None)
    return sorted(stated | set(known.values()))


def keep_whole(tokenizer: Any, fields: Fields) -> None:
    """Let a tokenizer of transformers match each control token and each user-defined one of a byte-level vocabulary as
    a whole, with the file's id. Tokens that transformers has put behind the file's are left out."""
    from tokenizers import Tokenizer

    tokens, kinds = fields.get_field(TOKENS), fields.get_field(KINDS) or []
    whole = {id: kind for id, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)}
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    known = {added["id"]: added for added in data["added_tokens"] if added["id"] < len(tokens)}
    changed = len(known) < len(data["added_tokens"])
    if fields.get_field(MODEL) == "gpt2":
        vocabulary: dict[str, int] = data["model"]["vocab"]
        cut = {id: kind for id, kind in whole.items() if vocabulary.get(tokens[id]) != id}
        spell_plainly(data["model"], {id: tokens[id] for id in cut})
        known |= {id: added_token(id, tokens[id], special=kind == CONTROL) for id, kind in cut.items()}
        changed = changed or bool(cut)
    if not changed:
        return
    data["added_tokens"] = [known[id] for id in sorted(known)]
    ids = {added["content"]: added["id"] for added in data["added_tokens"]}
    for text, entry in ((data.get("post_processor") or {}).get("special_tokens") or {}).items():
        entry["ids"] = [ids.get(text, entry["ids"][0])]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(data))


def spell_plainly(model: dict[str, Any], texts: dict[int, str]) -> None:
    """Change tokens' texts in a vocabulary. An old text stays beside the new one if a merge needs it."""
    if not texts:
        return
    needed = {text for merge in model["merges"] for text in (*merge, "".join(merge))}
    for before, id in list(model["vocab"].items()):
        if id in texts and before not in needed:
            del model["vocab"][before]
    model["vocab"] |= {text: id for id, text in texts.items()}


def added_token(id: int, text: str, special: bool) -> dict[str, Any]:
    """An entry of tokenizer.json's added_tokens, matched in the text as it is."""
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": text, **usual, "special": special}
