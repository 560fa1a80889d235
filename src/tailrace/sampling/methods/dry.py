"""DRY, "don't repeat yourself" (p-e-w, text-generation-webui pull request 5677; koboldcpp, llama.cpp).

For each token t that earlier followed a copy of the sequence's last n tokens (n as large as possible): if n ≥
allowed_length, l[t] −= multiplier · base^(n − allowed_length). A sequence breaker ends a copied stretch and is part of
none; a breaker itself is not penalised. `dry_penalty_last_n`: number of last tokens to search; −1 is all, 0 none.
Neutral: multiplier 0. Defaults: base 1.75, allowed length 2.

The length of a stretch has no limit. A penalty is at most 1e30, which is below every other logit.

Cost per token: the earlier occurrences of the last token (history.Suffixes), not the length of the history.
"""

from __future__ import annotations

import numpy as np

from tailrace.kernels.program import Add
from tailrace.sampling.slot import LogitsEdit, Slot, always

LARGEST = 1e30  # beyond any logit, and far from overflow


def edits(slot: Slot) -> list[Add]:
    params, history = slot.params, slot.history
    assert history is not None
    assert history.repeats is not None
    places, lengths = history.repeats.find_agreements()
    if params.dry_penalty_last_n >= 0:
        first = history.repeats.size - params.dry_penalty_last_n
        inside = places >= first
        places, lengths = places[inside], np.minimum(lengths[inside], places[inside] - first + 1)
    long = lengths >= params.dry_allowed_length
    followers, lengths = history.repeats.tokens[places[long] + 1], lengths[long]
    free = ~np.isin(followers, list(history.repeats.breakers))
    ids, which = np.unique(followers[free], return_inverse=True)
    if ids.size == 0:
        return []
    longest = np.zeros(ids.size)
    np.maximum.at(longest, which, lengths[free])
    excess = longest - params.dry_allowed_length
    with np.errstate(over="ignore"):
        penalty = np.minimum(params.dry_multiplier * np.power(params.dry_base, excess), LARGEST)
    return [Add(ids.astype(np.uint32), -penalty.astype(np.float32))]


METHOD = LogitsEdit(edits, moves=always, recalls=always)
