"""The honest server's sampler: the logits of a context, what the knobs make of them, and a draw by seed. All in
float64, all as the definitions say, written without a look at tailrace's own sampler.

A fault changes one definition (faults.py says what each must break). STYLES are no faults: what
honest servers do differently. It does not know of requests over HTTP: script.py has what it is asked.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripted_server.script import EOS, FOLLOWS, TAILS, VOCABULARY, WORDS, Drawn, Step, allowed_after, encode

Floats = NDArray[np.float64]
V = len(VOCABULARY)
STYLES = {
    "processed": "reports the logprobs of what is drawn from, as vLLM does with logprobs_mode processed_logprobs",
    "temperature-last": "divides by the temperature behind the truncations, as llama.cpp does; a fault where the "
    "server doesn't say so",
    "jitter": "logits differ from run to run by the rounding of bfloat16",
}
COPIES = [VOCABULARY.index(word) for word in WORDS]  # words that stood there lately come again
LOADED = 4  # requests at once from which on faults under load show


def generator(*parts: object) -> np.random.Generator:
    """Random numbers that are a function of the parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


@cache
def habits() -> Floats:
    """How much the model likes each token anywhere: some words and letters come again and again."""
    liked = generator("habits").normal(0.0, 1.3, V)
    liked[[VOCABULARY.index(word) for word in WORDS]] += 1.2
    return liked


@cache
def context_logits(last: tuple[int, ...]) -> Floats:
    """Logits after these ids, the last few of a context."""
    found = 1.3 * (habits() + generator("context", last).normal(0.0, 0.9, V)) + 4.0
    if last and VOCABULARY[last[-1]][-1:] >= b"\x80":  # wide characters come in rows
        found[[VOCABULARY.index(lead) for lead in FOLLOWS]] += 5.0
        found[VOCABULARY.index(b"\xf0\x9f")] += 3.0
    banned = np.ones(V, bool)
    banned[list(allowed_after(last))] = False
    found[banned] = -np.inf
    if not banned[EOS]:
        found[EOS] = np.log(np.exp(found[1:]).sum()) - 4.0  # 2%: texts end, but not at once
    return found


def logits(step: Step) -> Floats:
    """The model's logits for the step."""
    found = context_logits(tuple(step.ids[-3:])).copy()
    found[[id for id in COPIES if id in step.ids[-16:]]] += 2.5
    if step.fault == "jitter":
        found += 0.03 * np.random.default_rng(os.getpid() + step.num_running).normal(size=V)
    if step.allowed is not None:
        outside = np.ones(V, bool)
        outside[list(step.allowed)] = False
        found[~outside] = np.maximum(found[~outside], 0.0)  # structure may ask for what the model would never write
        found[outside] = -np.inf
    return found


def log_softmax(values: Floats) -> Floats:
    top = values.max()
    return values - (top + np.log(np.exp(values - top).sum()))


# ---- edits


def edited(raw: Floats, step: Step, params: Mapping[str, Any]) -> Floats:
    """Bans, biases and penalties, in this order."""
    found = raw.copy()
    output = list(step.ids[step.num_prompt :])
    if ids := params.get("allowed_token_ids"):
        outside = np.ones(V, bool)
        outside[list(ids)] = False
        if step.fault == "allowed-one-more":
            outside[min(set(range(1, V)) - set(ids) - TAILS)] = False
        found[outside] = -np.inf
    found[banned_words(step, params)] = -np.inf
    if len(output) < (params.get("min_tokens") or 0) - (step.fault == "min-tokens-one-less"):
        found[[EOS, *(params.get("stop_token_ids") or ())]] = -np.inf
    for id, bias in (params.get("logit_bias") or {}).items():
        found[int(id)] += bias * (0.5 if step.fault == "bias-halved" else 1.0)
    return penalised(found, step, params)


def banned_words(step: Step, params: Mapping[str, Any]) -> list[int]:
    """The last ids of words that would be completed."""
    words = params.get("bad_words") or ()
    spelled = [encode(text) for word in words for text in (word, " " + word.lstrip())]
    if step.fault == "bad-words-first-spelling":
        spelled = spelled[1::2]
    return [ids[-1] for ids in spelled if list(step.ids[len(step.ids) - len(ids) + 1 :]) == ids[:-1]]


def penalised(found: Floats, step: Step, params: Mapping[str, Any]) -> Floats:
    """Repetition penalty on all that was there, presence and frequency on the output."""
    penalty = params.get("repetition_penalty") or 1.0
    presence, frequency = params.get("presence_penalty") or 0.0, params.get("frequency_penalty") or 0.0
    if penalty == 1 and not presence and not frequency:
        return found
    prompt, output = list(step.ids[: step.num_prompt]), list(step.ids[step.num_prompt :])
    if step.fault == "penalties-late":
        output = output[:-1]
    for id, count in Counter(prompt + output).items():
        power = penalty**count if step.fault == "repetition-per-count" else penalty
        positive = found[id] > 0
        if step.fault == "repetition-inverted":
            positive = not positive
        found[id] = found[id] / power if positive else found[id] * power
    counted = prompt + output if step.fault == "penalties-prompt" else output
    for id, count in Counter(counted).items():
        found[id] -= presence * (count if step.fault == "presence-per-count" else 1)
        found[id] -= frequency * (count + (step.fault == "frequency-one-more") if step.fault != "frequency-once" else 1)
    return found


# ---- refinements


def refined(found: Floats, params: Mapping[str, Any], fault: str) -> Floats:
    """Temperature, top-k, top-p, min-p: log-probabilities, −inf where removed."""
    temperature = params.get("temperature", 1.0)
    temperature = 1.0 if temperature is None else temperature
    if temperature == 0:
        if fault == "zero-is-small":
            return log_softmax(found / 0.3)
        return np.where(np.arange(V) == int(found.argmax()), 0.0, -np.inf)
    power = 2.0 if fault == "temperature-squared" else 1.0
    last = fault == "temperature-last"
    found = log_softmax(found if last else found / temperature**power)
    whole = np.exp(found)
    if 0 < (k := params.get("top_k") or 0) < V:
        k += fault == "top-k-one-more"
        found[np.argsort(-found, kind="stable")[k:]] = -np.inf
        found = log_softmax(found)
    if (top_p := params.get("top_p")) is not None and top_p < 1:
        found[~nucleus(whole if fault == "top-p-before-renormalising" else np.exp(found), top_p, fault)] = -np.inf
        found = log_softmax(found)
    if min_p := params.get("min_p"):
        least = min_p * (1.0 if fault == "min-p-absolute" else np.exp(found.max()))
        found[(np.exp(found) < least) & (found < found.max())] = -np.inf
    if fault == "truncation-flattens" and np.isneginf(found).sum() > (whole == 0).sum():
        found = np.where(np.isneginf(found), found, 0.5 * found)
    return log_softmax(found / temperature if last else found)


def nucleus(probabilities: Floats, top_p: float, fault: str) -> NDArray[np.bool_]:
    """The smallest descending prefix whose mass reaches top_p."""
    order = np.argsort(-probabilities, kind="stable")
    size = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1
    size += (fault == "top-p-one-more") - (fault == "top-p-one-fewer")
    kept = np.zeros(V, bool)
    kept[order[: max(1, size)]] = True
    return kept


# ---- the draw


def noise(step: Step, params: Mapping[str, Any]) -> Floats:
    """Gumbel noise, a function of seed, index and position."""
    seed, index, position = step.seed, step.index, len(step.ids) - step.num_prompt
    fault = step.fault
    if fault == "children-alike":
        index = 0
    elif fault == "children-shuffled" and step.params.get("n", 1) > 1:
        index = (index + int(os.urandom(1)[0])) % step.params["n"]
    elif fault == "noise-frozen":
        position = 0
    elif fault == "noise-by-sum":
        seed, position = seed + position, 0
    elif fault == "few-seeds":
        seed, index = (seed + index) % 8, 0
    elif fault == "seed-cut":
        seed &= 0xFFFFFFFF
    elif fault == "seed-modulo":
        seed %= 1000
    elif fault == "seed-of-stream" and params.get("stream"):
        seed += 1
    elif fault == "seed-zero-unseeded" and params.get("seed") == 0:
        seed = int.from_bytes(os.urandom(8), "little")
    elif fault == "unseeded-alike" and params.get("seed") is None:
        seed = 0
    elif fault == "seed-under-load" and step.num_running > LOADED:
        seed = int.from_bytes(os.urandom(8), "little")
    elif fault == "seed-by-prompts" and step.longest_prompt > len(step.ids) + 100:
        seed += 1
    drawn = generator("noise", seed, index, position).gumbel(size=V)
    if fault == "cold-noise" or (fault == "cold-later" and position):
        drawn *= 0.6
    return drawn


def draw(step: Step) -> Drawn:
    """Draw the step's token; see script.Drawn."""
    params = {
        name: value for name, value in step.params.items() if value is not None and step.fault != f"ignores-{name}"
    }
    raw = logits(step)
    final = refined(edited(raw, step, params), params, step.fault)
    if step.fault == "ignores-seed":
        step = replace(step, seed=int.from_bytes(os.urandom(8), "little"))
    chosen = int((final + noise(step, params)).argmax())
    return Drawn(chosen, reported(raw, final, step).tolist())


def reported(raw: Floats, final: Floats, step: Step) -> Floats:
    """The log-probabilities that are told."""
    if step.fault == "processed":
        return final
    found = log_softmax(raw)
    if step.fault == "report-too-large":
        return found + 0.5
    if step.fault == "report-tempered":
        return log_softmax(raw * 1.4)
    if step.fault == "report-late" and len(step.ids) > step.num_prompt:
        return log_softmax(context_logits(tuple(step.ids[-4:-1])))
    return found
