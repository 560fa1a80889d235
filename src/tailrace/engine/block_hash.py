"""Names of the KV cache's blocks: equal names mean equal prefixes, computed with the same weights.

A block's hash is blake2b-128 over its parent's hash and its token ids. The first block's parent is the adapter's number
and, if there is a salt, the salt's hash. So requests with different salts have no block in common. The cache finds
blocks by their hash (kv_cache.py). A router in front of several engines chooses an engine by it (integrations/ray).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np


def root_of(adapter: int, salt: bytes = b"") -> bytes:
    """Return the parent of a first block: 4 bytes, or 20 with a salt. A block's hash has 16, so it is never a root.

    adapter: its number among the model's; 0 for none.
    """
    return adapter.to_bytes(4) + (blake2b(salt, digest_size=16).digest() if salt else b"")


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the hash, 16 bytes, of a full block after `parent`."""
    digest = blake2b(parent, digest_size=16)
    digest.update(np.array(token_ids, dtype=np.int64).tobytes())
    return digest.digest()


def prefix_hash(token_ids: Sequence[int], block_size: int, blocks: int, adapter: int = 0) -> bytes | None:
    """Return the hash of a prompt's first `blocks` blocks, or None.

    If the prompt has fewer blocks, their number is rounded down to a power of two. So a growing chat keeps its hash
    until it has doubled. None: no block could ever be reused, since the last token of a prompt is always computed.
    """
    full = (len(token_ids) - 1) // block_size
    if full < 1:
        return None
    found = root_of(adapter)
    for start in range(0, min(blocks, 1 << full.bit_length() - 1) * block_size, block_size):
        found = block_hash(found, token_ids[start : start + block_size])
    return found
