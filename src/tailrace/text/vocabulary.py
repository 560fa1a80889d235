"""The bytes of each token id, from the tokenizer's vocabulary and its decoder.

A decoder is one of three kinds:

- "bytes": byte-level BPE. A token is its bytes, and a text is the decode of their concatenation.
- "pieces": SentencePiece with byte fallback.
- "library": everything else. Only the tokenizers library can decode it.
"""

from __future__ import annotations

from typing import Any

METASPACE = "▁"


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-in for each byte → the byte (Radford et al. 2019)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = byte_alphabet()


def byte_level(token: str) -> bytes:
    """Return a byte-level token's bytes. A token with a character outside the alphabet has its own UTF-8 bytes."""
    try:
        return bytes([ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def fallback_byte(token: str) -> int | None:
    """Return the byte of a token like <0x0A>, None for any other."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None


def decode_piece(token: str) -> bytes:
    """Return a SentencePiece token's bytes."""
    byte = fallback_byte(token)
    return bytes([byte]) if byte is not None else token.replace(METASPACE, " ").encode()


def decoder_kind(decoder: dict[str, Any] | None) -> str:
    """Return "bytes", "pieces" or "library", from the decoder entry of tokenizer.json."""
    if decoder is None:
        return "library"
    steps, names = decoder.get("decoders", [decoder]), step_names(decoder)
    if names == ["ByteLevel"]:
        return "bytes"
    llama = ["Replace", "ByteFallback", "Fuse"]
    if names[:3] == llama and names[3:] in ([], ["Strip"]) and steps[0] == _METASPACE_STEP:
        strip = steps[3] if names[3:] else None
        if strip is None or (strip["content"], strip["start"], strip["stop"]) == (" ", 1, 0):
            return "pieces"
    return "library"


def step_names(decoder: dict[str, Any] | None) -> list[str]:
    """Return the types of the decoder's steps, in order."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [name for step in decoder["decoders"] for name in step_names(step)]
    return [decoder["type"]]


_METASPACE_STEP = {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "}


def strips_first_space(decoder: dict[str, Any]) -> bool:
    """Return whether a "pieces" decoder strips the text's first space."""
    return decoder["decoders"][-1]["type"] == "Strip"
