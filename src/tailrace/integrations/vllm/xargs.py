"""tailrace's own fields in `vllm_xargs` (`extra_args` offline): their names, and the one rule for their values.

JSON and vLLM's HTTP front end keep little of a value's type: `true` arrives as 1, and an object is refused. Therefore
all fields on all paths follow one rule:

- Numbers: 2.0 is the integer 2, and `true` is 1. Text is no number.
- Truth values: 1 and 0 (also 1.0 and 0.0) are true and false. Text is none.
- Names: text.
- Lists and objects: as they are, or as JSON text.

Two fields may hold text that only a tokenizer can read (CONVERTED). vLLM's front end converts such text to token ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_origin

import msgspec
from vllm import SamplingParams as Theirs

from tailrace.errors import ParameterError, format_json
from tailrace.integrations.vllm.refused_fields import EVERYWHERE
from tailrace.params import FIELDS, find_idle
from tailrace.request.fields import Field
from tailrace.text.token_phrases import WordEncoder, encode_biased_phrases, find_breaker_ids

VLLMS = {name for name in Theirs.__struct_fields__ if not name.startswith("_")} - {"extra_args"}
# vLLM has these fields, under the same name or under ours over HTTP
SHARED = {name: own for name, field in FIELDS.items() for own in (name, field.http_name) if own in VLLMS}
OURS = tuple(name for name in FIELDS if name not in SHARED and name not in EVERYWHERE)
# those whose effect depends on the output so far
READING = {name for name in OURS if FIELDS[name].kind == "edit" or FIELDS[name].stateful or name == "forced_token_ids"}
# names of fields at other servers, or of ours over HTTP
OTHER_NAMES = {other: name for name, field in FIELDS.items() for other in (*field.aliases, field.http_name) if other}
NEAR, NEARER = 0.75, 0.88  # how alike a misspelt name is; the second where others may read the name
CONVERTED = ("dry_sequence_breakers", "sequence_bias")


def own_fields(params: Theirs) -> dict[str, Any]:
    """Return tailrace's fields among `extra_args`, without those of a method that the request turns off.

    Raises:
        ParameterError: a value breaks the rule.
    """
    if not (given := params.extra_args):
        return {}
    found = {name: read_value(FIELDS[name], given[name]) for name in OURS if name in given}
    idle = find_idle(found, found) if found else ()
    return {name: value for name, value in found.items() if name not in idle}


# ---- values


def read_value(field: Field, value: Any) -> Any:
    """Return the value as SamplingParams takes it. Ranges are checked there.

    Raises:
        ParameterError: a list or an object is text that is no JSON.
    """
    if field.range is not None:
        return read_number(value, whole=field.range.whole)
    if field.type is bool:
        return bool(value) if isinstance(value, int | float) and value in (0, 1) else value
    if isinstance(value, str) and get_origin(field.type) is not Literal:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            text = f"{field.name} must be a list or an object, or one as JSON text, got {format_json(value[:100])}"
            raise ParameterError(text, field.name) from error
    return value


def read_number(value: Any, whole: bool) -> Any:
    """Return a truth value as 0 or 1, and a whole float as an integer if the field has integers."""
    if isinstance(value, bool):
        return int(value)
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def convert_texts(own: Mapping[str, Any], tokenizer: WordEncoder) -> dict[str, Any]:
    """Return the fields of CONVERTED as token ids, in a form that JSON can hold. DRY gets its default breakers, as from
    our own server.

    Raises:
        ParameterError: a field holds something else, or too much.
    """
    found: dict[str, Any] = {}
    breakers, multiplier = own.get("dry_sequence_breakers"), own.get("dry_multiplier")
    if breakers is None or holds_only(breakers, str):
        found["dry_sequence_breakers"] = list(find_breaker_ids(breakers, tokenizer, multiplier))
    elif not holds_only(breakers, int):
        text = "dry_sequence_breakers must be a list of strings, or a list of token ids"
        raise ParameterError(f"{text}, got {format_json(breakers)[:200]}", "dry_sequence_breakers")
    if (biases := own.get("sequence_bias")) is not None:
        phrases = encode_biased_phrases(checked_biases(biases), tokenizer)
        found["sequence_bias"] = [[list(ids), bias] for ids, bias in phrases]
    return {name: value for name, value in found.items() if value or name in own}


def holds_only(value: Any, kind: type) -> bool:
    """Return whether this is a list of such entries. A truth value is no number here."""
    return isinstance(value, list | tuple) and all(isinstance(one, kind) and not isinstance(one, bool) for one in value)


def checked_biases(biases: Any) -> list[tuple[Any, Any]]:
    """Raise ParameterError unless this is a list of [text or token ids, bias]."""
    if isinstance(biases, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 2 for one in biases):
        pairs = [(what, read_number(bias, whole=False)) for what, bias in biases]
        if all(
            (isinstance(what, str) or holds_only(what, int)) and isinstance(bias, int | float) for what, bias in pairs
        ):
            return pairs
    text = "sequence_bias must be a list of [text or token ids, bias], or one as JSON text"
    raise ParameterError(f"{text}, got {format_json(biases)[:200]}", "sequence_bias")


def holds_text(own: Mapping[str, Any]) -> str:
    """Return a field whose value waits for a tokenizer; "" if none does."""
    if (own.get("dry_multiplier") and "dry_sequence_breakers" not in own) or any(
        isinstance(one, str) for one in own.get("dry_sequence_breakers", ())
    ):
        return "dry_sequence_breakers"
    pairs = own.get("sequence_bias", ())
    return "sequence_bias" if any(isinstance(what, str) for what, _ in checked_biases(pairs)) else ""


class NoTokenizer:
    """The tokenizer of a check before any tokenizer is known: each word is one token, and no token has a breaker."""

    def bad_word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Return one spelling."""
        return ((0,),)

    def ids_with(self, strings: tuple[str, ...]) -> tuple[int, ...]:
        """Return no token."""
        return ()


# ---- names


def check_theirs(given: Collection[str]) -> None:
    """Raise ParameterError for a name of vLLM's own: vLLM does not read it in `vllm_xargs`."""
    for name in given:
        if (own := SHARED.get(name, name)) in VLLMS:
            raise ParameterError(f"{name} can't be had in vllm_xargs: set vLLM's own {own}, outside of it", name)


def check_names(given: Collection[str], refused: Mapping[str, str], read_by_others: bool) -> None:
    """Raise ParameterError for a name that would have no effect.

    Args:
        refused: the refused fields of this server, with reasons. read_by_others: others may read names that tailrace
            does not know.
    """
    for name in given:
        field = name if name in FIELDS else OTHER_NAMES.get(name, "")
        if field in refused:
            raise ParameterError(f"{name} can't be had inside vLLM: {refused[field]}", name)
        if field == name:
            continue
        [near] = [field] if field else get_close_matches(name, FIELDS, 1, NEARER if read_by_others else NEAR) or [""]
        if near:
            where = f"vLLM's own {SHARED[near]}, outside of vllm_xargs" if near in SHARED else near
            raise ParameterError(f"there is no field {name} in vllm_xargs; did you mean {where}?", name)
