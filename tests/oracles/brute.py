"""The whole sampler for one row in plain Python and float64, written from the formulas: the oracle. Imports nothing of ours.

Order: allowed ids, bad words, min_tokens, bias, penalties; then temperature, min-p, top-k, top-p, each on the renormalised survivors of the
one before. Ties: larger value first, then smaller id.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

NONE = float("-inf")


@dataclass
class Ask:
    """What the request asks, by the field's names."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: list[int] | None = None
    bad_words: list[list[int]] = field(default_factory=list)
    min_tokens: int = 0
    enders: list[int] = field(default_factory=list)


def edit(logits: list[float], ask: Ask, prompt: list[int], output: list[int]) -> list[float]:
    row = list(logits)
    if ask.allowed_token_ids is not None:
        row = [x if i in ask.allowed_token_ids else NONE for i, x in enumerate(row)]
    text = prompt + output
    for word in ask.bad_words:
        head = word[:-1]
        if not head or text[-len(head) :] == head:
            row[word[-1]] = NONE
    if len(output) < ask.min_tokens:
        for i in ask.enders:
            row[i] = NONE
    for i, bias in ask.logit_bias.items():
        row[i] += bias
    for i in set(text):
        r = ask.repetition_penalty
        row[i] = row[i] / r if row[i] > 0 else row[i] * r
    for i, count in Counter(output).items():
        row[i] -= ask.frequency_penalty * count + ask.presence_penalty
    return row


def softmax(row: dict[int, float]) -> dict[int, float]:
    top = max(row.values())
    weights = {i: math.exp(x - top) for i, x in row.items()}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def descending(row: dict[int, float]) -> list[int]:
    return sorted(row, key=lambda i: (-row[i], i))


def refine(row: list[float], ask: Ask) -> dict[int, float]:
    """Surviving id → its logit after temperature."""
    alive = {i: x for i, x in enumerate(row) if x != NONE}
    top = max(alive.values())
    alive = {i: (x - top) / ask.temperature for i, x in alive.items()}
    if ask.min_p > 0:
        p = softmax(alive)
        best = max(p.values())
        alive = {i: x for i, x in alive.items() if x >= math.log(ask.min_p) and p[i] <= best}
    if ask.top_k > 0:
        alive = {i: alive[i] for i in descending(alive)[: ask.top_k]}
    if ask.top_p < 1:
        p, kept, mass = softmax(alive), [], 0.0
        for i in descending(alive):
            if kept and mass >= ask.top_p:
                break
            kept.append(i)
            mass += p[i]
        alive = {i: alive[i] for i in kept}
    return alive


def distribution(logits: list[float], ask: Ask, prompt: list[int], output: list[int]) -> dict[int, float]:
    """Id → probability of what may be drawn."""
    row = edit(logits, ask, prompt, output)
    if ask.temperature == 0:
        best = max(row)
        return {row.index(best): 1.0}
    return softmax(refine(row, ask))


# ---- noise, in Python integers


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    mask = 0xFFFFFFFF
    k0, k1 = key & mask, key >> 32 & mask
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = b >> 32 ^ c1 ^ k0, b & mask, a >> 32 ^ c3 ^ k1, a & mask
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    return c0, c1, c2, c3


def gumbel(key: int, position: int, token: int) -> float:
    bits = philox(key, (token, 0, position & 0xFFFFFFFF, position >> 32))[0]
    return -math.log(-math.log1p(-(bits + 0.5) * 2.0**-32))


def scores(alive: dict[int, float], key: int, position: int) -> dict[int, float]:
    """Logit plus noise: the largest is drawn."""
    return {i: x + gumbel(key, position, i) for i, x in alive.items()}
