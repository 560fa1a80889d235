"""Which ids each token was drawn from, as JSON: one list per entry of `token_ids`, in vLLM's shape and SGLang's."""

from __future__ import annotations

import array
import sys

import msgspec

from tailrace.text.output import Delta

IDS_PER_CHAR = 8  # writing so many ids costs as much as tokenizing a character

_encode = msgspec.json.Encoder().encode


def written_masks(piece: Delta) -> list[msgspec.Raw]:
    """Of each token of a piece the ids, ascending; null where more survived than the server tells."""
    return [msgspec.Raw(_encode(ids_of(data))) for data in piece.survivors or ()]


def ids_of(data: bytes) -> list[int] | None:
    """As the wire carries them (wire/messages.py) → the ids; None where they were too many."""
    ids = array.array("i", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist() or None


def mask_size(piece: Delta) -> int:
    """What it costs to write a piece's masks, in characters."""
    return sum(map(len, piece.survivors or ())) // (4 * IDS_PER_CHAR)
