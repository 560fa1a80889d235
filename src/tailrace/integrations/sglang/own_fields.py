"""tailrace's fields in a request's `custom_params`: which names may be there, and the parameters made of them.

The front end checks the fields where the request enters. It adds the parameters as a text, because SGLang sends no
nested lists to its scheduler. Imports no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec

from tailrace.errors import ParameterError
from tailrace.integrations.sglang.refused_fields import SGLANG, SGLANG_DRAFTS, THEIRS
from tailrace.params import FIELDS, SamplingParams
from tailrace.request.sampler_fields import DRY_BREAKERS, PENALTIES
from tailrace.sampling.processors import find_processor
from tailrace.text.tokenizer import Tokenizer

KEY = "__tailrace_params"  # of the text, among the custom params
# SGLang's top-p takes its mass from the whole distribution, not from what top-k keeps; its min-p comes last.
ORDER = ("temperature", "top_p", "top_k", "min_p")
READ_BY_SGLANG = frozenset({"thinking_budget"})  # of custom params
ALIASES = {
    alias: name
    for name, field in FIELDS.items()
    for alias in (*field.aliases, field.http_name)
    if alias and alias not in FIELDS
}


def find_own_fields(custom: Mapping[str, Any], drafts: bool, foreign: bool) -> dict[str, Any]:
    """Return tailrace's fields among a request's custom params.

    Args:
        drafts: the server has drafts. foreign: a custom logits processor may read other names.

    Raises:
        ParameterError: a name has no effect.
    """
    refused = SGLANG_DRAFTS if drafts else SGLANG
    own: dict[str, Any] = {}
    for name, value in custom.items():
        if name in FIELDS and name not in THEIRS and name not in refused:
            own[name] = value
        elif name not in READ_BY_SGLANG and not name.startswith("__sglang_"):
            check_foreign_name(name, refused, foreign)
    return own


def check_foreign_name(name: str, refused: Mapping[str, str], foreign: bool) -> None:
    """Raise ParameterError for a name that has no effect among the custom params. A name unlike all of tailrace's may
    belong to a custom logits processor."""
    if reason := explain_refusal(name, refused):
        raise ParameterError(f"custom_params: {reason}", name)
    near = get_close_matches(name, [field for field in FIELDS if field not in THEIRS and field not in refused], 1, 0.8)
    if near:
        raise ParameterError(f"custom_params: {name} is no field of tailrace's: is {near[0]} meant?", name)
    if name == KEY or not foreign:
        raise ParameterError(f"custom_params: {name} has no effect: neither tailrace nor SGLang reads it", name)


def explain_refusal(name: str, refused: Mapping[str, str]) -> str:
    """Return why a known name has no effect among the custom params; "" for an unknown name."""
    name, given = ALIASES.get(name, name), name
    if name in refused:
        return f"{given} has no effect in SGLang{'' if name in SGLANG else ' with drafts'}: {refused[name]}"
    if name in THEIRS:
        return f"{given} is SGLang's own field: give it as {THEIRS[name]}, outside of custom_params"
    return f"{given} is named {name} in tailrace" if given != name else ""


def make_params(own: Mapping[str, Any], theirs: Mapping[str, Any], backend: Any, vocab_size: int) -> SamplingParams:
    """Return the sampler's parameters of a request.

    Args:
        own: tailrace's fields. theirs: SGLang's, as `read_fields` returns them.
        backend: tokenizer of the package tokenizers, for texts; None if the server has no such tokenizer.

    Raises:
        ParameterError: a value is invalid.
    """
    for name in PENALTIES:
        if name in own and theirs.get(name, FIELDS[name].default) != FIELDS[name].default:
            raise ParameterError(f"{name} is given twice: in custom_params and outside", name)
    fields: dict[str, Any] = {"sampler_order": ORDER, **own}
    texts = [name for name in SPELLED if name in fields]
    if own.get("dry_multiplier") and "dry_sequence_breakers" not in own:
        fields["dry_sequence_breakers"] = list(DRY_BREAKERS) if backend is not None else []
        texts.append("dry_sequence_breakers")
    tokenizer = wrap_tokenizer(backend) if backend is not None and texts else None
    for name in texts:
        fields[name] = SPELLED[name](name, fields[name], tokenizer)
    kept = {name: value for name, value in theirs.items() if name not in PENALTIES}
    params = SamplingParams(**kept, **fields)
    params.check_vocab(vocab_size)
    for name in params.processors:
        find_processor(name)
    return params


def read_fields(theirs: Any) -> dict[str, Any]:
    """Return SGLang's own fields of a request as tailrace has them. theirs: SGLang's SamplingParams, normalised, where
    top_k 1 at temperature 1 stands for temperature 0."""
    penalties = {name: getattr(theirs, name) for name in PENALTIES}
    if theirs.top_k == 1:
        return {"temperature": 0.0, **penalties}
    top_k = 0 if theirs.top_k >= 1 << 30 else theirs.top_k
    cut = {"top_p": theirs.top_p, "min_p": theirs.min_p}
    return {"temperature": theirs.temperature, "top_k": top_k, **cut, **penalties}


def pack_params(params: SamplingParams) -> str:
    """Return the parameters as a text."""
    return msgspec.json.encode(params).decode()


def unpack_params(text: str) -> SamplingParams:
    """Return the parameters from `pack_params`."""
    return msgspec.json.decode(text, type=SamplingParams)


# ---- texts → token ids


@lru_cache(maxsize=2)
def wrap_tokenizer(backend: Any) -> Tokenizer:
    """Return tailrace's tokenizer around one of the package tokenizers. It is made once, which takes a moment."""
    return Tokenizer(backend)


def need_tokenizer(name: str, tokenizer: Tokenizer | None) -> Tokenizer:
    """Raise ParameterError without a tokenizer."""
    if tokenizer is None:
        raise ParameterError(f"{name} can't hold texts: the server has no fast tokenizer; give token ids", name)
    return tokenizer


def spell_breakers(name: str, value: Any, tokenizer: Tokenizer | None) -> Any:
    """Return the ids of all tokens that contain one of these strings. Ids are returned unchanged."""
    if not is_list_of(value, str) or not value:
        return value
    if not all(value):
        raise ParameterError(f"{name} must hold non-empty strings", name)
    return need_tokenizer(name, tokenizer).ids_with(tuple(value))


def spell_words(name: str, value: Any, tokenizer: Tokenizer | None) -> Any:
    """Return each word's spellings as ids. Lists of ids are returned unchanged."""
    if not isinstance(value, list):
        return value
    spelled = [spell_word(name, word, tokenizer) if isinstance(word, str) else [word] for word in value]
    return [ids for spellings in spelled for ids in spellings]


def spell_biases(name: str, value: Any, tokenizer: Tokenizer | None) -> Any:
    """Return [text or ids, bias] as [ids, bias], for each spelling of the text."""
    if not isinstance(value, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in value):
        return value
    return [
        [ids, bias]
        for word, bias in value
        for ids in (spell_word(name, word, tokenizer) if isinstance(word, str) else [word])
    ]


def spell_word(name: str, word: str, tokenizer: Tokenizer | None) -> Sequence[Sequence[int]]:
    """Return a word's spellings as ids.

    Raises:
        ParameterError: the word is empty.
    """
    if not word:
        raise ParameterError(f"{name} must hold non-empty words", name)
    return need_tokenizer(name, tokenizer).bad_word_ids(word)


def is_list_of(value: Any, kind: type) -> bool:
    """Return whether the value is a list with entries of this type alone."""
    return isinstance(value, list) and all(isinstance(entry, kind) for entry in value)


SPELLED = {"dry_sequence_breakers": spell_breakers, "bad_words": spell_words, "sequence_bias": spell_biases}
