"""The tokenizer and the chat templates of a GGUF file. Part of convert.py's process.

transformers makes the tokenizer. What transformers takes unseen is checked here first: errors name the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.errors import ModelLoadError, take_first_line
from tailrace.models.child import send_line
from tailrace.models.gguf_fields import Fields, is_count
from tailrace.models.gguf_special_tokens import (
    CONTROL,
    END_KEYS,
    KINDS,
    MODEL,
    PREFIX,
    TEMPLATE,
    TOKENS,
    keep_whole,
)
from tailrace.models.pretokenizer import BEGINNING, GPT2, WHOLE_WORDS, missing_split
from tailrace.text.templates.program import TemplateProgram

MERGES, SCORES = f"{PREFIX}merges", f"{PREFIX}scores"
PRE, ADD_BOS = f"{PREFIX}pre", f"{PREFIX}add_bos_token"
SUPPRESSED = f"{PREFIX}suppress_tokens"
IDS = (*END_KEYS, *(f"{PREFIX}{name}_token_id" for name in ("bos", "unknown", "padding")))
FLAGS = tuple(f"{PREFIX}add_{name}" for name in ("space_prefix", "bos_token", "eos_token"))
# kinds of vocabularies. transformers reads "t5" too, without its table of characters, for no model that is converted
READ = ("gemma4", "gpt2", "llama")
TEMPLATE_FOLDER = "additional_chat_templates"
TEMPLATE_NAME = re.compile(re.escape(TEMPLATE) + r"\.([\w-]+)")
MOST_KINDS = 7  # of tokens: gguf.constants.TokenType, and 0 for an unknown kind


def convert_tokenizer(fields: Fields, folder: Path) -> None:
    """Write the tokenizer, split as the file says it must be, and the chat templates.

    Raises:
        ModelLoadError: a field of the tokenizer can't be read, or transformers can't make a tokenizer.
    """
    from transformers import PreTrainedTokenizerFast

    source = fields.path
    try:
        templates = check_tokenizer(fields)
        begins: dict[str, Any] = {"add_bos_token": True} if begins_texts(fields) else {}
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source.parent, gguf_file=source.name, **begins)
        set_beginning(tokenizer, fields)
        keep_whole(tokenizer, fields)
        set_split(tokenizer.backend_tokenizer, fields)
    except ModelLoadError as error:
        raise ModelLoadError(f"the tokenizer of {source.name} can't be read: {error}") from error
    except Exception as error:  # whatever transformers' reader raises
        reason = take_first_line(error)
        lists = f"the fields {TOKENS} and {MERGES} make none"
        raise ModelLoadError(f"the tokenizer of {source.name} can't be read: {lists}: {reason:.300}") from error
    tokenizer.save_pretrained(folder)
    for title, template in templates.items():
        (folder / TEMPLATE_FOLDER).mkdir(exist_ok=True)
        (folder / TEMPLATE_FOLDER / f"{title}.jinja").write_text(template, encoding="utf-8")


def begins_texts(fields: Fields) -> bool:
    """Return True if texts begin with the token for that by the pre-tokenizer's name, and no field says otherwise."""
    unsaid = fields.get_field(ADD_BOS) is None and fields.get_field(f"{PREFIX}bos_token_id") is not None
    return unsaid and fields.get_field(MODEL) == "gpt2" and fields.get_field(PRE) in BEGINNING


def set_beginning(tokenizer: Any, fields: Fields) -> None:
    """Begin texts of a SentencePiece vocabulary with token 1 where the file names no first token, as llama.cpp does."""
    tokens, kinds = fields.get_field(TOKENS), fields.get_field(KINDS) or []
    said = fields.get_field(f"{PREFIX}bos_token_id") is not None or fields.get_field(ADD_BOS) is False
    if fields.get_field(MODEL) == "llama" and not said and kinds[1:2] == [CONTROL]:
        tokenizer.bos_token = tokens[1]
        tokenizer.add_bos_token = True
        tokenizer.update_post_processor()


def set_split(tokenizer: Any, fields: Fields) -> None:
    """Split text as the pre-tokenizer's name says.

    Raises:
        ModelLoadError: the name is not known.
    """
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    name, kind = fields.get_field(PRE), fields.get_field(MODEL)
    if kind == "llama" and fields.get_field(f"{PREFIX}add_space_prefix") is False:
        leave_prefix_out(tokenizer)
    if kind != "gpt2":
        return
    split = missing_split(name)
    if split is not None:
        tokenizer.pre_tokenizer = split
    elif name in (None, "default"):
        send_line(
            "warning", f"the file does not name its pre-tokenizer ({PRE}): GPT-2's is used, and text may encode wrongly"
        )
    elif name not in GGUF_PRE_TOKENIZER_SPLITS and name not in GPT2:
        raise ModelLoadError(f"the field {PRE} is {name!r:.80}, which is not known: text would be encoded wrongly")
    if name in WHOLE_WORDS:
        tokenizer.model.ignore_merges = True


def check_tokenizer(fields: Fields) -> dict[str, str]:
    """Return the chat templates that have names.

    Raises:
        ModelLoadError: naming the field that has another kind of value than a tokenizer needs.
    """
    kind, tokens = fields.get_field(MODEL), fields.get_field(TOKENS)
    if kind not in READ:
        raise ModelLoadError(f"the field {MODEL} {describe_value(kind)}, and these are read: {', '.join(READ)}")
    if not (isinstance(tokens, list) and tokens and all(isinstance(token, str) for token in tokens)):
        raise ModelLoadError(f"the field {TOKENS} must be a list of texts, and {describe_value(tokens)}")
    size, rows = len(tokens), fields.rows("token_embd.weight")
    if size > rows:
        raise ModelLoadError(f"the field {TOKENS} has {size} tokens, and the embedding has {rows} rows")
    wanted: dict[str, tuple[str, Callable[[Any], bool]]] = {
        **dict.fromkeys(IDS, (f"a token's id in [0, {size - 1}]", lambda id: is_count(id, 0) and id < size)),
        **dict.fromkeys(FLAGS, ("true or false", lambda flag: flag in (False, True))),
        PRE: ("a text", lambda text: isinstance(text, str)),
        KINDS: ("a kind for each token", lambda kinds: is_list_of(kinds, size, is_kind)),
        MERGES: ("pairs of tokens", lambda pairs: is_list_of(pairs, None, is_pair)),
        SCORES: ("a number for each token", lambda scores: is_list_of(scores, size, is_score)),
    }
    for key, (what, fits) in wanted.items():
        value = fields.get_field(key)
        if value is not None and not fits(value):
            raise ModelLoadError(f"the field {key} must be {what}, and {describe_value(value)}")
    if fields.get_field(SCORES) is None and fields.get_field(MERGES) is None:
        missing = MERGES if kind == "gpt2" else SCORES
        raise ModelLoadError(f"the field {missing} is missing")
    if suppressed := fields.get_field(SUPPRESSED):
        send_line("warning", f"the field {SUPPRESSED} is not used: a request may ban these tokens: {suppressed!s:.80}")
    return check_templates(fields)


def check_templates(fields: Fields) -> dict[str, str]:
    """Return the chat templates that have names.

    Raises:
        ModelLoadError: naming the field whose template can't be read.
    """
    named: dict[str, str] = {}
    for key in fields.names():
        title = TEMPLATE_NAME.fullmatch(key)
        if key != TEMPLATE and not title:
            continue
        source = fields.get_field(key)
        if not isinstance(source, str):
            raise ModelLoadError(f"the field {key} must be a text, and {describe_value(source)}")
        TemplateProgram(source, f"the field {key}")
        if title:
            named[title[1]] = source
    return named


def describe_value(value: Any) -> str:
    """What a field is, in words."""
    if isinstance(value, list):
        return f"it is a list of {len(value)}: {value!s:.60}"
    return "is missing" if value is None else f"is {value!r:.80}"


def is_list_of(values: Any, size: int | None, fits: Callable[[Any], bool]) -> bool:
    """Return True for a list of `size` entries that fit. size: None for any."""
    return isinstance(values, list) and size in (None, len(values)) and all(map(fits, values))


def is_kind(value: Any) -> bool:
    """Return True for a kind of token."""
    return is_count(value, 0) and value < MOST_KINDS


def is_pair(value: Any) -> bool:
    """Return True for a merge: two tokens with a space between."""
    return isinstance(value, str) and len(value.split(" ")) == 2


def is_score(value: Any) -> bool:
    """Return True for a number that is finite."""
    return isinstance(value, int | float) and math.isfinite(value)


def leave_prefix_out(tokenizer: Any) -> None:
    """No space before a text: transformers adds one whatever the file says. Gemma's tokenizer adds none anyway."""
    from tokenizers import decoders, pre_tokenizers

    if not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Metaspace):
        return
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
