"""The records of the fake model's tokens: each by walking the draw that it describes, so that it is true to itself."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from page.fake_model import SIZE, SPECIAL_IDS, UNASKED, VOCAB, Script, bytes_of, name_of


def noise_of(key: int, position: int) -> np.ndarray:
    """Gumbel noise: a function of key, position and id."""
    return np.random.default_rng([key, position]).gumbel(size=SIZE)


def raw_logits(script: Script, history: list[int], index: int) -> np.ndarray:
    """The model's own row."""
    digest = hashlib.sha256(repr(history[-8:]).encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8]))
    logits = rng.normal(size=SIZE) * 1.6
    logits[len(VOCAB) :] -= 6
    logits[UNASKED] -= 6
    if index < len(script.tokens):
        channel, id = script.tokens[index]
        logits[id] = logits.max() + rng.choice([1.5, 3.0, 4.0, 6.0, 9.0])
        if id in UNASKED or id >= len(VOCAB) or channel == "tool":
            logits[id] += 30
    return logits


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def entropy_of(p: np.ndarray) -> float:
    some = p[p > 0]
    return float(-(some * np.log(some)).sum())


@dataclass
class Walk:
    """The steps of one row."""

    logits: np.ndarray
    edits: list[dict[str, Any]] = field(default_factory=list)
    refinements: list[dict[str, Any]] = field(default_factory=list)
    removed: dict[int, str] = field(default_factory=dict)

    def edit(self, method: str, fields: dict[str, Any], logits: np.ndarray) -> None:
        before, self.logits = self.logits, logits
        banned = np.isinf(logits) & ~np.isinf(before)
        self.removed |= dict.fromkeys(np.flatnonzero(banned).tolist(), method)
        changed = int(((logits != before) & ~np.isinf(logits)).sum())
        left = int((~np.isinf(logits)).sum())
        self.edits.append(
            {
                "method": method,
                "fields": fields,
                "changed": changed,
                "banned": int(banned.sum()),
                "left": left,
                "row": logits,
            }
        )

    def refine(self, method: str, fields: dict[str, Any], logits: np.ndarray) -> None:
        before, after = softmax(self.logits), softmax(logits)
        cut = np.flatnonzero((before > 0) & (after == 0))
        kept = after > 0
        likeliest = sorted(cut.tolist(), key=lambda id: -before[id])[:5]
        self.removed |= dict.fromkeys(cut.tolist(), method)
        self.refinements.append(
            {
                "method": method,
                "fields": fields,
                "before": int((before > 0).sum()),
                "kept": int(kept.sum()),
                "mass": float(before[kept].sum()),
                "entropy": entropy_of(after),
                "row": after,
                **(cut_of(before, kept, likeliest) if len(cut) else {}),
            }
        )
        self.logits = logits


def cut_of(before: np.ndarray, kept: np.ndarray, likeliest: list[int]) -> dict[str, Any]:
    """What a step that cuts says of it."""
    return {
        "boundary": float(before[kept].min()),
        "cut_ids": likeliest,
        "cut_probabilities": [float(before[id]) for id in likeliest],
    }


def walk(raw: np.ndarray, params: dict[str, Any], history: list[int], only: int | None) -> Walk:
    """The edits and the refinements that the request asks for."""
    made = Walk(raw.copy())
    if only is not None:
        mask = np.full(SIZE, -np.inf)
        mask[only] = raw[only]
        made.edit("grammar", {}, mask)
    if biases := params.get("logit_bias"):
        logits = made.logits.copy()
        for id, bias in biases.items():
            logits[int(id)] += bias
        made.edit("logit_bias", {"logit_bias": biases}, logits)
    penalties = {
        name: params[name]
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        if params.get(name)
    }
    if penalties:
        logits = made.logits.copy()
        for id in set(history):
            repetition = penalties.get("repetition_penalty", 1.0)
            logits[id] = logits[id] / repetition if logits[id] > 0 else logits[id] * repetition
            logits[id] -= penalties.get("presence_penalty", 0.0) + penalties.get(
                "frequency_penalty", 0.0
            ) * history.count(id)
        made.edit("penalties", penalties, logits)
    refine_all(made, params)
    return made


def refine_all(made: Walk, params: dict[str, Any]) -> None:
    temperature = params.get("temperature", 1.0)
    if temperature == 0:
        return
    if temperature != 1.0:
        made.refine("temperature", {"temperature": temperature}, made.logits / temperature)
    p = softmax(made.logits)
    if min_p := params.get("min_p"):
        made.refine("min_p", {"min_p": min_p}, np.where(p >= min_p * p.max(), made.logits, -np.inf))
    if (top_k := params.get("top_k", 0)) > 0:
        order = np.argsort(-made.logits, kind="stable")
        made.refine("top_k", {"top_k": top_k}, np.where(np.isin(np.arange(SIZE), order[:top_k]), made.logits, -np.inf))
    if (top_p := params.get("top_p", 1.0)) < 1:
        p = softmax(made.logits)
        order = np.argsort(-p, kind="stable")
        size = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
        made.refine("top_p", {"top_p": top_p}, np.where(np.isin(np.arange(SIZE), order[:size]), made.logits, -np.inf))


@dataclass(frozen=True)
class Place:
    """Where a token stands: in the output and in the sequence; what the noise comes from; what came before."""

    index: int
    position: int
    key: int
    history: list[int]


def number(value: float) -> float | None:
    return None if math.isinf(value) else float(value)


def explain(
    script: Script, params: dict[str, Any], place: Place, options: dict[str, Any], came: int | None
) -> dict[str, Any]:
    """A token and its record as HTTP has it. came: the token that stands there; None: the one that is drawn."""
    index = place.index
    forced = params.get("forced_token_ids") or []
    raw = raw_logits(script, place.history, index)
    only = script.tokens[index][1] if index in script.forced and index < len(script.tokens) else None
    made = walk(raw, params, place.history, only)
    greedy = params.get("temperature", 1.0) == 0
    noise = np.zeros(SIZE) if greedy else noise_of(place.key, place.position)
    p = softmax(made.logits)
    with np.errstate(divide="ignore"):
        scores = made.logits if greedy else np.log(p) + noise
    order = np.argsort(-scores, kind="stable")
    winner, second = int(order[0]), int(order[1])
    runner_up = second if p[second] > 0 else None
    origin = "greedy" if greedy else "drawn"
    if index < len(forced):
        origin, token = "forced", forced[index]
    else:
        token = winner
        origin = "forced" if only is not None else origin
    if came is not None:
        token = came
    draft = None
    if came is None and script.drafts and index % 3 and index >= len(forced):
        guess = token if index % 7 else (token + 1) % len(VOCAB)
        draft = {"rule": "exact", "place": index % 3 - 1, "token": guess, "p": float(p[guess]), "drafter": "ngram"}
        origin = "accepted" if guess == token else "replaced"
    model = softmax(raw)
    ranks = np.empty(SIZE, dtype=int)
    ranks[np.argsort(-raw, kind="stable")] = np.arange(1, SIZE + 1)
    top = options.get("top", 10)
    shown = [
        *np.argsort(-raw, kind="stable")[:top].tolist(),
        *np.argsort(-p, kind="stable")[: min(top, int((p > 0).sum()))].tolist(),
    ]
    shown += [token, winner, *([] if runner_up is None else [runner_up]), *options.get("ids", [])]
    ids = sorted(set(shown), key=lambda id: ranks[id])

    def of(row: np.ndarray) -> list[float | None]:
        return [number(row[id]) for id in ids]

    def possible(row: np.ndarray) -> list[float | None]:
        return [float(row[id]) if p[id] > 0 else None for id in ids]

    record: dict[str, Any] = {
        "index": index,
        "position": place.position,
        "key": f"{place.key:016x}",
        "token_id": token,
        "origin": origin,
        "ids": ids,
        "model": {
            "logits": of(raw),
            "probabilities": [float(model[id]) for id in ids],
            "ranks": [int(ranks[id]) for id in ids],
            "entropy": entropy_of(model),
            "varentropy": float((model * (np.log(model) + entropy_of(model)) ** 2).sum()),
        },
        "edits": [
            {
                **{k: v for k, v in step.items() if k != "row"},
                "logits": of(step["row"]),
                "probabilities": softmax(step["row"])[ids].tolist(),
            }
            for step in made.edits
        ],
        "refinements": [
            {
                **{k: v for k, v in step.items() if k != "row"},
                "probabilities": [float(step["row"][id]) or None for id in ids],
            }
            for step in made.refinements
        ],
        "draw": {
            "probabilities": possible(p),
            "noise": possible(noise),
            "scores": possible(scores),
            "winner": winner,
            **({"greedy": True} if greedy else {}),
            **(
                {}
                if runner_up is None
                else {"runner_up": runner_up, "margin": float(scores[winner] - scores[runner_up])}
            ),
        },
        "removed_by": [made.removed.get(id, "") for id in ids],
        **({"draft": draft} if draft else {}),
        **({"ended": "stop"} if token == SPECIAL_IDS["<|end|>"] else {}),
    }
    return record | {
        "token": name_of(token),
        "bytes": bytes_of(token),
        "tokens": [name_of(id) for id in ids],
        "sentences": sentences(record),
    }


def sentences(record: dict[str, Any]) -> dict[str, Any]:
    """In the manner of sentences.py; the page shows them as they are."""
    place = record["ids"].index(record["token_id"])
    p, model = record["draw"]["probabilities"][place], record["model"]
    draw = f"p was {p:.2g}: drawn in {100 * p:.0f} of 100 seeds" if p else "It could not be drawn"
    if (margin := record["draw"].get("margin")) is not None:
        draw += f"; it won by {margin:.2f} over {name_of(record['draw']['runner_up'])!r}"

    def why_not(i: int, id: int) -> str:
        if id == record["token_id"]:
            return ""
        if record["removed_by"][i]:
            return f"{record['removed_by'][i]} removed it."
        best = max(score for score in record["draw"]["scores"] if score is not None)
        return f"It could be drawn; its score was {best - record['draw']['scores'][i]:.2f} below the winner's."

    return {
        "model": f"It had {100 * model['probabilities'][place]:.2g} %, rank {model['ranks'][place]} of {SIZE}.",
        "edits": [
            f"{step['method']} changed {step['changed']} and banned {step['banned']}; {step['left']} are left."
            for step in record["edits"]
        ],
        "refinements": [
            f"{step['method']} kept {step['kept']} of {step['before']} tokens, {100 * step['mass']:.1f} % of the mass."
            for step in record["refinements"]
        ],
        "draw": draw + ".",
        "why_not": [why_not(i, id) for i, id in enumerate(record["ids"])],
    }
