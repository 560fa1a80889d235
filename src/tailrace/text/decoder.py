"""The decoder entry of tokenizer.json as a list of steps, and functions that pass text through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

from tailrace.base.extras import require_extra
from tailrace.errors import ModelLoadError
from tailrace.text.decoder_steps import (
    ByteFallback,
    ByteLevel,
    DecoderStep,
    Distinct,
    ElementPart,
    Fuse,
    LastSuffix,
    Metaspace,
    NotEmpty,
    Replace,
    ReplacePattern,
    Strip,
    Whole,
    WordPiece,
    may_be_byte,
)

CLEANUP = (  # replacements of WordPiece and CTC, in this order
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    *((f" {ending}", ending) for ending in ("'s", "'ve", "'re")),
)


def make_cleanup_steps(wanted: bool) -> list[DecoderStep]:
    return [Replace(old, new) for old, new in CLEANUP] if wanted else []


def make_replace_steps(step: dict[str, Any]) -> list[DecoderStep]:
    pattern, new = step["pattern"], step["content"]
    if "String" in pattern:
        return [Replace(pattern["String"], new)] if pattern["String"] else []
    with require_extra("text"):
        import tokenizers

    decoder = tokenizers.decoders.Replace(tokenizers.Regex(pattern["Regex"]), new)
    return [ReplacePattern(lambda text: decoder.decode([text]))]


def make_ctc_steps(step: dict[str, Any]) -> list[DecoderStep]:
    spaced = [Replace(step["word_delimiter_token"], " ")] if step["cleanup"] else []
    return [
        Whole(),
        Distinct(),
        Replace(step["pad_token"], ""),
        *make_cleanup_steps(step["cleanup"]),
        *spaced,
        NotEmpty(),
    ]


KINDS: dict[str, Callable[[dict[str, Any]], list[DecoderStep]]] = {
    "Sequence": lambda step: [made for inner in step["decoders"] for made in KINDS[inner["type"]](inner)],
    "ByteLevel": lambda step: [Whole(), ByteLevel()],
    "ByteFallback": lambda step: [Whole(may_be_byte), ByteFallback()],
    "Fuse": lambda step: [Fuse()],
    "Replace": make_replace_steps,
    "Strip": lambda step: [Strip(step["content"], step["start"], step["stop"])],
    "Metaspace": lambda step: [Metaspace(step["replacement"], step["prepend_scheme"] != "never")],
    "WordPiece": lambda step: [WordPiece(step["prefix"]), *make_cleanup_steps(step["cleanup"])],
    "BPEDecoder": lambda step: [LastSuffix(step["suffix"])],
    "CTC": make_ctc_steps,
}


def make_steps(decoder: dict[str, Any] | None) -> list[DecoderStep]:
    """Return the steps of the decoder entry of tokenizer.json. Without a decoder, the text has a space between the
    tokens.

    Raises:
        ModelLoadError: a decoder is of another type.
    """
    try:
        return [Fuse(" ")] if decoder is None else KINDS[decoder["type"]](decoder)
    except KeyError as error:
        raise ModelLoadError(f"tokenizer.json: the decoder {error} is not supported") from error


def feed_steps(steps: Sequence[DecoderStep], parts: Iterable[ElementPart]) -> str:
    """Return the text that comes out of the last step."""
    for step in steps:
        parts = [passed for part in parts for passed in step.feed(part)]
    return "".join(part.text for part in parts)


def flush_steps(steps: Sequence[DecoderStep]) -> str:
    """Return the text that the steps have withheld. After this, the text is at its end."""
    parts: list[ElementPart] = []
    for step in steps:
        parts = [*(passed for part in parts for passed in step.feed(part)), *step.flush()]
    return "".join(part.text for part in parts)


def peek_steps(steps: Sequence[DecoderStep]) -> str:
    """Return the text that `flush_steps` would return, and change nothing."""
    return flush_steps([copy(step) for step in steps]) if any(step.pending for step in steps) else ""
