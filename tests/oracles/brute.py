"""The whole sampler for one row in plain Python and float64, written from the formulas: the oracle. Imports nothing of
ours.

Order of the edits: normalised, allowed ids, bad words, min_tokens, no-repeat n-grams, bias, sequence bias, penalties,
DRY, length decay.
Order of the refinements: as asked, each on the renormalised candidates of the one before. Ties: larger value first,
then smaller id.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

NONE = float("-inf")


@dataclass
class Ask:
    """What the request asks, by the field's names."""

    temperature: float = 1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    smoothing_factor: float = 0.0
    smoothing_curve: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_a: float = 0.0
    typical_p: float = 1.0
    tfs_z: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_n_sigma: float = 0.0
    top_h: float = 0.0
    p_less: bool = False
    p_less_norm: bool = False
    min_k: bool = False
    min_k_tau: float = 3.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_mu: float = 10.0
    adaptive_target: float = -1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = -1
    repetition_scope: str = "both"
    penalty_scope: str = "output"
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: list[int] = field(default_factory=list)
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    exponential_decay_length_penalty: tuple[int, float] | None = None
    normalize_logits: bool = False
    logit_bias: dict[int, float] = field(default_factory=dict)
    sequence_bias: list[tuple[list[int], float]] = field(default_factory=list)
    allowed_token_ids: list[int] | None = None
    bad_words: list[list[int]] = field(default_factory=list)
    min_tokens: int = 0
    enders: list[int] = field(default_factory=list)
    eos: list[int] = field(default_factory=list)
    sampler_order: list[str] = field(default_factory=list)
    key: int = 0
    position: int = 0


# ---- edits


def edit(logits: list[float], ask: Ask, prompt: list[int], output: list[int]) -> list[float]:
    row = list(logits)
    text = prompt + output
    if ask.normalize_logits:
        whole = max(row) + math.log(math.fsum(math.exp(x - max(row)) for x in row))
        row = [x - whole for x in row]
    if ask.allowed_token_ids is not None:
        row = [x if i in ask.allowed_token_ids else NONE for i, x in enumerate(row)]
    for word in ask.bad_words:
        if ends_with(text, word[:-1]):
            row[word[-1]] = NONE
    if len(output) < ask.min_tokens:
        for i in ask.enders:
            row[i] = NONE
    if ask.no_repeat_ngram_size:
        n = ask.no_repeat_ngram_size
        for at in range(len(text) - n + 1):
            if ends_with(text, text[at : at + n - 1]):
                row[text[at + n - 1]] = NONE
    if ask.encoder_no_repeat_ngram_size:
        n = ask.encoder_no_repeat_ngram_size
        for at in range(len(prompt) - n + 1):
            if ends_with(text, prompt[at : at + n - 1]):
                row[prompt[at + n - 1]] = NONE
    for i, bias in ask.logit_bias.items():
        row[i] += bias
    for word, bias in ask.sequence_bias:
        if ends_with(text, list(word[:-1])):
            row[word[-1]] += bias
    for i in set(prompt):
        e = ask.encoder_repetition_penalty
        row[i] = row[i] * e if row[i] > 0 else row[i] / e
    penalise(row, ask, prompt, output)
    for i, amount in dry(ask, text).items():
        row[i] -= amount
    if ask.exponential_decay_length_penalty is not None:
        start, factor = ask.exponential_decay_length_penalty
        if len(output) > start:
            for i in set(ask.eos):
                if row[i] != NONE:
                    row[i] += abs(row[i]) * (factor ** (len(output) - start) - 1)
    return row


def ends_with(text: list[int], tail: list[int]) -> bool:
    return not tail or text[-len(tail) :] == list(tail)


def penalise(row: list[float], ask: Ask, prompt: list[int], output: list[int]) -> None:
    marked = [(i, "prompt") for i in prompt] + [(i, "output") for i in output]
    if ask.penalty_last_n >= 0:
        marked = marked[max(0, len(marked) - ask.penalty_last_n) :]
    seen = {i for i, part in marked if ask.repetition_scope in ("both", part)}
    counts = Counter(i for i, part in marked if ask.penalty_scope in ("both", part))
    for i in seen:
        r = ask.repetition_penalty
        row[i] = row[i] / r if row[i] > 0 else row[i] * r
    for i, count in counts.items():
        row[i] -= ask.frequency_penalty * count + ask.presence_penalty


def dry(ask: Ask, text: list[int]) -> dict[int, float]:
    """By definition: every earlier place, how far back it agrees with the end."""
    if ask.dry_multiplier == 0 or not text:
        return {}
    window = text if ask.dry_penalty_last_n < 0 else text[max(0, len(text) - ask.dry_penalty_last_n) :]
    longest: dict[int, int] = {}
    for at in range(len(window) - 1):
        n = 0
        while (
            n <= at
            and window[at - n] == window[len(window) - 1 - n]
            and window[at - n] not in ask.dry_sequence_breakers
        ):
            n += 1
        token = window[at + 1]
        if n >= ask.dry_allowed_length and token not in ask.dry_sequence_breakers:
            longest[token] = max(n, longest.get(token, 0))
    return {i: ask.dry_multiplier * ask.dry_base ** (n - ask.dry_allowed_length) for i, n in longest.items()}


# ---- refinements: {id: logit} → {id: logit}


def softmax(row: dict[int, float]) -> dict[int, float]:
    top = max(row.values())
    weights = {i: math.exp(x - top) for i, x in row.items()}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def descending(row: dict[int, float]) -> list[int]:
    return sorted(row, key=lambda i: (-row[i], i))


def entropy(p: dict[int, float]) -> float:
    return -math.fsum(x * math.log(x) for x in p.values() if x > 0)


def only(alive: dict[int, float], ids) -> dict[int, float]:
    return {i: alive[i] for i in sorted(ids)}


def temperature(alive, ask, row):
    top = max(alive.values())
    return {i: (x - top) / ask.temperature for i, x in alive.items()}


def dynatemp(alive, ask, row):
    if len(alive) == 1:
        return alive
    low, high = max(0.0, ask.temperature - ask.dynatemp_range), ask.temperature + ask.dynatemp_range
    t = low + (high - low) * (entropy(softmax(alive)) / math.log(len(alive))) ** ask.dynatemp_exponent
    top = max(alive.values())
    if t <= 0:
        return {i: x for i, x in alive.items() if x == top}
    return {i: (x - top) / t for i, x in alive.items()}


def smoothing(alive, ask, row):
    top, s, c = max(alive.values()), ask.smoothing_factor, ask.smoothing_curve
    return {i: -(s * (3 - c) / 2) * (top - x) ** 2 - (s * (c - 1) / 2) * (top - x) ** 3 for i, x in alive.items()}


def min_p(alive, ask, row):
    top = max(alive.values())
    return {i: x for i, x in alive.items() if x >= top + math.log(ask.min_p)}


def top_k(alive, ask, row):
    return only(alive, descending(alive)[: ask.top_k])


def prefix(alive, order, weights, limit):
    """Ids in this order until their weights reach the limit; at least one."""
    kept, mass = [], 0.0
    for i in order:
        if kept and mass >= limit:
            break
        kept.append(i)
        mass += weights[i]
    return only(alive, kept)


def top_p(alive, ask, row):
    return prefix(alive, descending(alive), softmax(alive), ask.top_p)


def top_a(alive, ask, row):
    p = softmax(alive)
    return only(alive, [i for i in p if p[i] >= min(ask.top_a * max(p.values()) ** 2, max(p.values()))])


def typical_p(alive, ask, row):
    p = softmax(alive)
    h = entropy(p)
    distance = {i: abs(-math.log(x) - h) if x > 0 else math.inf for i, x in p.items()}
    return prefix(alive, sorted(p, key=lambda i: (distance[i], i)), p, ask.typical_p)


def tfs_z(alive, ask, row):
    if len(alive) <= 2:
        return alive
    p = softmax(alive)
    order = descending(alive)
    q = [p[i] for i in order]
    first = [b - a for a, b in itertools.pairwise(q)]
    second = [abs(b - a) for a, b in itertools.pairwise(first)]
    total = math.fsum(second)
    second = [x / total if total > 0 else 1 / len(second) for x in second]
    running = 0.0
    for i, x in enumerate(second):
        running += x
        if running > ask.tfs_z:
            return only(alive, order[: max(1, i)])
    return alive


def epsilon_cutoff(alive, ask, row):
    p = softmax(alive)
    return only(alive, [i for i in p if p[i] >= min(ask.epsilon_cutoff, max(p.values()))])


def eta_cutoff(alive, ask, row):
    p = softmax(alive)
    least = min(ask.eta_cutoff, math.sqrt(ask.eta_cutoff) * math.exp(-entropy(p)))
    return only(alive, [i for i in p if p[i] >= min(least, max(p.values()))])


def top_n_sigma(alive, ask, row):
    finite = [x for x in row if x != NONE]
    mean = math.fsum(finite) / len(finite)
    sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in finite) / len(finite))
    # an earlier refinement may have removed the row's largest: the largest there is stays
    bound = min(max(finite) - ask.top_n_sigma * sigma * (1 + 2**-10), max(row[i] for i in alive))
    return only(alive, [i for i in alive if row[i] >= bound])


def top_h(alive, ask, row):
    order = descending(alive)[:100]
    p = softmax({i: alive[i] for i in order})
    limit = ask.top_h * entropy(p)
    kept, running = [], 0.0
    for i in order:
        running += -p[i] * math.log(p[i]) if p[i] > 0 else 0.0
        if running > limit * (1 + 1e-12):
            break
        kept.append(i)
    return only(alive, kept or order[:1])


def p_less(alive, ask, row):
    p = softmax(alive)
    agree = math.fsum(x * x for x in p.values())
    if ask.p_less_norm:
        agree = (len(row) * agree - 1) / (len(row) - 1)
    return only(alive, [i for i in p if p[i] >= min(agree, max(p.values()))])


def min_k(alive, ask, row):
    """By the paper's formula, on the logits before any refinement."""
    finite = [x for x in row if x != NONE]
    spread = max(finite) - min(finite) + 1e-8
    order = descending({i: row[i] for i in alive})
    falls = [(row[a] - row[b]) / i for i, (a, b) in enumerate(itertools.pairwise(order), 1)]
    cliff = falls.index(max(falls)) + 1 if falls else 1
    return only(alive, order[: max(cliff, math.floor(min(ask.min_k_tau / spread, len(order))))])


def xtc(alive, ask, row):
    if uniform(ask.key, ask.position, 3) >= ask.xtc_probability:
        return alive
    p = softmax(alive)
    top = [i for i in descending(alive) if p[i] >= ask.xtc_threshold and i not in ask.eos]
    return alive if len(top) < 2 else only(alive, set(alive) - set(top[:-1]))


def mirostat(alive, ask, row):
    p = softmax(alive)
    order = descending(alive)
    if ask.mirostat == 2:
        kept = [i for i in p if p[i] > 0 and -math.log2(p[i]) <= ask.mirostat_mu]
        return only(alive, kept or [i for i in p if p[i] == max(p.values())])
    q = [alive[i] for i in order[:100]]
    if len(q) < 2:
        return alive
    t = [math.log((i + 2) / (i + 1)) for i in range(len(q) - 1)]
    b = [a - c for a, c in itertools.pairwise(q)]
    s = math.fsum(x * y for x, y in zip(t, b, strict=True)) / math.fsum(x * x for x in t)
    e = s - 1
    if s <= 0:
        return alive
    log_k = (math.log(abs(e)) + ask.mirostat_mu * math.log(2) - math.log(abs(1 - len(row) ** -e))) / s
    return only(alive, order[: max(1, min(len(order), int(math.exp(min(log_k, 50)))))])


def adaptive_p(alive, ask, row):
    aim = min(1.0, max(0.0, ask.adaptive_target))  # the average starts at the target
    moved = {}
    for i, p in softmax(alive).items():
        d = abs(p - aim) / 0.3
        moved[i] = 5 - 10 * d * d / (1 + d)
    return moved


REFINEMENTS = {
    "temperature": (temperature, lambda a: a.temperature != 1 and a.dynatemp_range == 0),
    "dynatemp": (dynatemp, lambda a: a.dynatemp_range > 0),
    "smoothing": (smoothing, lambda a: a.smoothing_factor > 0),
    "min_p": (min_p, lambda a: a.min_p > 0),
    "top_k": (top_k, lambda a: a.top_k > 0),
    "top_p": (top_p, lambda a: a.top_p < 1),
    "top_n_sigma": (top_n_sigma, lambda a: a.top_n_sigma > 0),
    "typical_p": (typical_p, lambda a: a.typical_p < 1),
    "tfs_z": (tfs_z, lambda a: a.tfs_z < 1),
    "top_a": (top_a, lambda a: a.top_a > 0),
    "epsilon_cutoff": (epsilon_cutoff, lambda a: a.epsilon_cutoff > 0),
    "eta_cutoff": (eta_cutoff, lambda a: a.eta_cutoff > 0),
    "top_h": (top_h, lambda a: a.top_h > 0),
    "p_less": (p_less, lambda a: a.p_less or a.p_less_norm),
    "min_k": (min_k, lambda a: a.min_k),
    "mirostat": (mirostat, lambda a: a.mirostat > 0),
    "xtc": (xtc, lambda a: a.xtc_probability > 0),
    "adaptive_p": (adaptive_p, lambda a: a.adaptive_target >= 0),
}


def refine(row: list[float], ask: Ask) -> dict[int, float]:
    """Surviving id → its logit, relative to the largest of the row, after all refinements."""
    top = max(row)
    alive = {i: x - top for i, x in enumerate(row) if x != NONE}
    for name in dict.fromkeys([*ask.sampler_order, *REFINEMENTS]):
        apply, wanted = REFINEMENTS[name]
        if wanted(ask):
            alive = apply(alive, ask, row)
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


def gumbel(key: int, position: int, token: int, stream: int = 0) -> float:
    place = (position & 0xFFFFFFFF, position >> 32)
    w0, w1, w2, w3 = philox(key, (token // 16, 2 * stream + 1, *place))
    halves = [h for w in (w0, w1, w2, w3) for h in (w & 0xFFFF, w >> 16)]
    hot = all(h >> (token % 16) & 1 for h in halves)
    v = (philox(key, (token, 2 * stream, *place))[0] + 0.5) * 2.0**-32
    e = -math.log1p(-v / 256) if hot else -math.log((1 - v) * (255 / 256))
    return -math.log(e)


def uniform(key: int, position: int, stream: int) -> float:
    w0, w1, _, _ = philox(key, (0, 2 * stream, position & 0xFFFFFFFF, position >> 32))
    return ((w0 << 21 | w1 >> 11) + 0.5) * 2.0**-53


def scores(alive: dict[int, float], key: int, position: int) -> dict[int, float]:
    """Logit plus noise: the largest is drawn."""
    return {i: x + gumbel(key, position, i) for i, x in alive.items()}


# ---- speculative outcomes, by enumeration

Law = dict[tuple[int, ...], float]


def plain_law(targets: list[list[float]], length: int) -> Law:
    """What plain sampling says: positions are independent here, as the targets do not depend on what was drawn."""
    law: Law = {(): 1.0}
    for p in targets[:length]:
        law = {(*said, x): mass * px for said, mass in law.items() for x, px in enumerate(p) if px > 0}
    return law


def rejection_law(targets: list[list[float]], proposals: list[list[float]]) -> Law:
    """Emitted tokens of one verification of K drafts drawn from the proposals: Leviathan's rule by the formula."""
    law: Law = {}

    def walk(j: int, said: tuple[int, ...], mass: float) -> None:
        if mass == 0:
            return
        if j == len(proposals):
            for x, px in enumerate(targets[j]):
                law[(*said, x)] = law.get((*said, x), 0.0) + mass * px
            return
        p, q = targets[j], proposals[j]
        rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
        for x, qx in enumerate(q):
            if qx == 0:
                continue
            accept = min(1.0, p[x] / qx)
            walk(j + 1, (*said, x), mass * qx * accept)
            if accept < 1:
                for y, r in enumerate(rest):
                    if r > 0:
                        law[(*said, y)] = law.get((*said, y), 0.0) + mass * qx * (1 - accept) * r / sum(rest)

    walk(0, (), 1.0)
    return law
