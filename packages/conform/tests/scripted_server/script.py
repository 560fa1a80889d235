"""The scripted model of the honest server: its vocabulary, and what the server asks its sampler:
`sampler.draw(step: Step) -> Drawn`.

Tokens are pieces of bytes. Some characters take several tokens, some tokens hold several characters, some strings can
be spelled in many ways, so stops fall inside and across tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EOS = 0
LETTERS = [bytes([code]) for code in range(0x20, 0x7F)] + [b"\n"]  # every ASCII character: any JSON can be spelled
WORDS = [
    b" the",
    b" a",
    b" sea",
    b" was",
    b"ing",
    b"ed",
    b" and",
    b" to",
    b" stone",
    b" st",
    b"one",
    b" of",
    b", ",
    b". ",
]
WIDE = ["é".encode(), "ü".encode(), "漢".encode(), "字".encode()]  # whole characters
PARTS = [b"\xf0\x9f", b"\x98\x80", b"\x8e\x89", b"\xe6\xbc", b"\xa2", b"\xc3", b"\xa9"]  # 😀 🎉 漢 é in pieces
VOCABULARY: list[bytes] = [b"", *LETTERS, *WORDS, *WIDE, *PARTS]
LONGEST = max(map(len, VOCABULARY))
ID_OF = {piece: at for at, piece in enumerate(VOCABULARY) if at != EOS}
# what may follow bytes that are not a whole character yet; nothing else may
FOLLOWS: dict[bytes, tuple[bytes, ...]] = {
    b"\xf0\x9f": (b"\x98\x80", b"\x8e\x89"),
    b"\xe6\xbc": (b"\xa2",),
    b"\xc3": (b"\xa9",),
}
TAILS = frozenset(ID_OF[piece] for group in FOLLOWS.values() for piece in group)


def allowed_after(ids: Sequence[int]) -> frozenset[int]:
    """Ids that may follow: the honest model writes valid UTF-8 only."""
    last = VOCABULARY[ids[-1]] if ids else b""
    if last in FOLLOWS:
        return frozenset(ID_OF[piece] for piece in FOLLOWS[last])
    return frozenset(range(len(VOCABULARY))) - TAILS


def encode(text: str) -> list[int]:
    """Greedy longest match, over bytes; a byte that no piece has becomes "?"."""
    data, ids = text.encode(errors="replace"), []
    longest = LONGEST
    at = 0
    while at < len(data):
        size = next((n for n in range(longest, 0, -1) if data[at : at + n] in ID_OF), 0)
        ids.append(ID_OF[data[at : at + size]] if size else ID_OF[b"?"])
        at += size or 1
    return ids


@dataclass(frozen=True)
class Step:
    """One token to draw. ids: prompt and output so far. params: the request's body as sent (temperature, top_p, top_k,
    min_p, penalties, logit_bias, min_tokens, bad_words, allowed_token_ids, …). seed: the request's, or a random one.
    index: which of n. num_running: requests at once; longest_prompt: tokens of the longest of their prompts; both for
    faults under load. allowed: ids that structure leaves, or None. fault: a name of faults.py, or ""."""

    ids: Sequence[int]
    num_prompt: int
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    index: int = 0
    num_running: int = 1
    allowed: frozenset[int] | None = None
    fault: str = ""
    longest_prompt: int = 0


@dataclass(frozen=True)
class Drawn:
    """The drawn id, and the log-probabilities that are reported for the position: raw, of all ids."""

    id: int
    logprobs: Sequence[float]
