"""A record of why a token came (explanation.py) → plain sentences, one per step. Imports no torch, knows no tokenizer:
whoever calls gives a function from a token id to the text that is shown for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tailrace.explanation import DraftView, Explanation, RefinementStep
from tailrace.figures import chance, given, many, percent, seeds, significant
from tailrace.params import NEUTRAL

ROUNDING = 1.0 + 1e-6  # a probability may be known from two sums
ShowToken = Callable[[int], str]
Number = float | None


class Sentences(msgspec.Struct, frozen=True):
    """Those of one record. edits, refinements: one for each step. why_not: one for each shown token, "" for the one
    that came."""

    model: str
    edits: list[str]
    refinements: list[str]
    draw: str
    why_not: list[str]


def sentences_of(record: Explanation, show: ShowToken) -> Sentences:
    """All of them. show: a token's text, as people shall see it."""
    return Sentences(
        model_sentence(record, show),
        [edit_sentence(record, k, show) for k in range(len(record.edits))],
        [refinement_sentence(record, k, show) for k in range(len(record.refinements))],
        draw_sentence(record, show),
        [why_not(record, i, show) for i in range(len(record.ids))],
    )


def quoted(token: int, show: ShowToken) -> str:
    """A token's text in quotation marks."""
    return f"“{show(token)}”"


# ---- the model


def model_sentence(record: Explanation, show: ShowToken) -> str:
    """What the model itself says of the token that came."""
    model, at = record.model, record.ids.index(record.token_id)
    who = "With guidance the model" if model.conditional is not None else "The model"
    p = percent(model.probabilities[at])
    ending = f"Its entropy is {significant(model.entropy)} nats."
    if model.logits[at] is None:
        return f"{who} ruled {quoted(record.token_id, show)} out. {ending}"
    if model.ranks[at] == 1:
        return f"{who} has {quoted(record.token_id, show)} first, with {p}. {ending}"
    first = f"{quoted(record.ids[0], show)} with {percent(model.probabilities[0])}"
    rank = f"{who} has {quoted(record.token_id, show)} at place {model.ranks[at]:,}, with {p}"
    return f"{rank}; first is {first}. {ending}" if model.ranks[0] == 1 else f"{rank}. {ending}"


# ---- edits

EDITS: dict[str, str] = {
    "grammar": "The grammar",
    "normalize_logits": "The log-softmax of all logits",
    "allowed_token_ids": "The list of allowed tokens",
    "bad_words": "The list of bad words",
    "banned_at": "The text that may not appear",
    "min_tokens": "The minimum length",
    "no_repeat_ngram": "The rule that no n-gram comes twice",
    "logit_bias": "The logit bias",
    "sequence_bias": "The sequence bias",
    "processors": "The custom processor",
    "encoder_repetition_penalty": "The repetition penalty of the prompt",
    "penalties": "The penalties",
    "dry": "DRY, which looks for repetitions,",
    "length_decay": "The length penalty",
    "green_list": "The watermark",
}


def edit_sentence(record: Explanation, k: int, show: ShowToken) -> str:
    """What the k-th edit of the record did, and what it did to the token that came."""
    step, at = record.edits[k], record.ids.index(record.token_id)
    done = []
    if step.changed:
        done.append(f"changed the logits of {many(step.changed)}")
    if step.banned:
        done.append(f"banned {many(step.banned)}, which leaves {step.left:,}")
    before = (record.edits[k - 1].logits if k else record.model.logits)[at]
    return f"{EDITS[step.method]} {' and '.join(done)}{moved(record.token_id, before, step.logits[at], show)}."


def moved(token: int, before: Number, after: Number, show: ShowToken) -> str:
    """What became of the token's own logit, if anything."""
    if before is None or before == after:
        return ""
    if after is None:
        return f", {quoted(token, show)} among them"
    return f"; that of {quoted(token, show)} went from {before:.2f} to {after:.2f}".replace("-", "−")


# ---- refinements

Values = Mapping[str, Any]
LABELS: dict[str, Callable[[Values], str]] = {
    "temperature": lambda of: f"Temperature {given(of['temperature'])}",
    "dynatemp": lambda of: f"Dynamic temperature (± {given(of['dynatemp_range'])})",
    "smoothing": lambda of: f"Smoothing with factor {given(of['smoothing_factor'])}",
    "min_p": lambda of: f"min-p {given(of['min_p'])}",
    "top_k": lambda of: f"top-k {of['top_k']}",
    "top_p": lambda of: f"top-p {given(of['top_p'])}",
    "top_n_sigma": lambda of: f"top-nσ {given(of['top_n_sigma'])}",
    "typical_p": lambda of: f"typical-p {given(of['typical_p'])}",
    "tfs_z": lambda of: f"tail-free sampling {given(of['tfs_z'])}",
    "top_a": lambda of: f"top-a {given(of['top_a'])}",
    "epsilon_cutoff": lambda of: f"epsilon {given(of['epsilon_cutoff'])}",
    "eta_cutoff": lambda of: f"eta {given(of['eta_cutoff'])}",
    "top_h": lambda of: f"top-H {given(of['top_h'])}",
    "p_less": lambda of: "p-less-norm" if of["p_less_norm"] else "p-less",
    "min_k": lambda of: f"min-k (τ {given(of['min_k_tau'])})",
    "mirostat": lambda of: f"Mirostat {of['mirostat']} (τ {given(of['mirostat_tau'])} bits)",
    "xtc": lambda of: f"XTC (threshold {given(of['xtc_threshold'])})",
    "adaptive_p": lambda of: f"adaptive-p {given(of['adaptive_target'])}",
    "synthid": lambda of: "The watermark's tournament",
    "draft": lambda of: "The refused draft",
}
# what those say that move probabilities; the others cut
MOVED: dict[str, Callable[[Values], str]] = {
    "temperature": lambda of: "sharpened the distribution" if of["temperature"] < 1.0 else "flattened the distribution",
    "dynatemp": lambda of: "followed the distribution's entropy",
    "smoothing": lambda of: "bent the logits",
    "adaptive_p": lambda of: "favoured the tokens with probabilities near its target",
    "synthid": lambda of: "moved probability to the tokens that its key favours",
}
CUT = {
    "xtc": "removed {cut} of the likeliest among {before}, {gone} of the mass",
    "draft": "left {kept} of {before} that have more probability than it proposed",
}
KEPT = "kept {kept} of {before}, {mass} of the mass"
NOTHING = "had nothing to cut: {before} stayed"
NOTHING_BY = {"xtc": "did nothing this time: {before} stayed"}
ONE_LEFT = "had nothing to cut: one token is left"


def label_of(step: RefinementStep) -> str:
    """The refinement's name and what was asked of it."""
    return LABELS[step.method](NEUTRAL | step.fields)


def refinement_sentence(record: Explanation, k: int, show: ShowToken) -> str:
    """What the k-th refinement of the record did, and how near the token that came was to being cut."""
    step, at = record.refinements[k], record.ids.index(record.token_id)
    numbers = {
        "kept": f"{step.kept:,}",
        "before": many(step.before),
        "cut": f"{step.before - step.kept:,}",
        "mass": percent(step.mass),
        "gone": percent(1.0 - step.mass),
    }
    if step.method in MOVED:
        said = f"{MOVED[step.method](NEUTRAL | step.fields)}; its entropy is {significant(step.entropy)} nats now"
        said += f", and {many(step.kept)} of {step.before:,} can still come" if step.kept < step.before else ""
    elif step.kept == step.before:
        said = (NOTHING_BY.get(step.method, NOTHING) if step.before > 1 else ONE_LEFT).format(**numbers)
    else:
        said = CUT.get(step.method, KEPT).format(**numbers)
    return f"{label_of(step)} {said}.{close_call(record, k, at, show)}"


def before_step(record: Explanation, k: int) -> list[Number]:
    """The shown tokens' probabilities before the k-th refinement."""
    if k:
        return record.refinements[k - 1].probabilities
    return list(record.edits[-1].probabilities if record.edits else record.model.probabilities)


def close_call(record: Explanation, k: int, at: int, show: ShowToken) -> str:
    """The token that came was less than twice as likely as the least that stayed."""
    step, p = record.refinements[k], before_step(record, k)[at]
    if step.boundary is None or p is None or step.probabilities[at] is None or step.kept == 1:
        return ""
    least = percent(step.boundary)
    if p >= 2.0 * step.boundary:
        return ""
    if p <= step.boundary * ROUNDING:
        return f" {quoted(record.token_id, show)} was the least likely that stayed, with {percent(p)}."
    return f" {quoted(record.token_id, show)} was near the boundary: {percent(p)}, where {least} stayed."


# ---- the draw


def draw_sentence(record: Explanation, show: ShowToken) -> str:
    """How the token came to be chosen."""
    draw, draft = record.draw, record.draft
    if record.origin == "forced":
        return f"It was forced. {would(record, show)}"
    if draft is not None and record.origin == "accepted" and draft.rule != "exact":
        return f"{accepted(draft, show)} {would(record, show)}"
    opening = ""
    if draft is not None:
        taken = record.origin == "accepted"
        opening = f"The draft {quoted(draft.token, show)} is what is drawn. " if taken else refused(draft, show)
    if record.token_id != draw.winner:
        return f"{opening}It is not what these parameters draw: {quoted(draw.winner, show)} wins."
    if draw.runner_up is None or draw.margin is None:
        return f"{opening}It was the only token that was left."
    second = quoted(draw.runner_up, show)
    if draw.greedy:
        behind = f"{significant(draw.margin)} above {second}" if draw.margin else f"as large as that of {second}"
        return f"{opening}It has the largest logit, {behind}."
    p = draw.probabilities[record.ids.index(record.token_id)] or 0.0
    return f"{opening}p was {chance(p)}: drawn {seeds(p)}; it won by {significant(draw.margin)} over {second}."


def would(record: Explanation, show: ShowToken) -> str:
    """What would have been drawn."""
    if record.draw.winner == record.token_id:
        return "It would have been drawn, too."
    return f"{quoted(record.draw.winner, show)} would have been drawn."


def accepted(draft: DraftView, show: ShowToken) -> str:
    """Why a draft was taken."""
    if draft.bound is None:
        return f"The draft {quoted(draft.token, show)} was accepted, with p {chance(draft.p)}{proposal(draft)}."
    return (
        f"The draft {quoted(draft.token, show)} was accepted: its p, {chance(draft.p)}, is above "
        f"{chance(draft.bound)}{proposal(draft)}."
    )


def refused(draft: DraftView, show: ShowToken) -> str:
    """Why one was not taken."""
    draw = f"The draft {quoted(draft.token, show)} was refused"
    if draft.bound is None:
        return f"{draw} (p {chance(draft.p)}{proposal(draft)}). "
    return f"{draw}: its p, {chance(draft.p)}, is not above {chance(draft.bound)}{proposal(draft)}. "


def proposal(draft: DraftView) -> str:
    """With which probability it was proposed."""
    return "" if draft.q is None else f", proposed with q {chance(draft.q)}"


# ---- why not


def why_not(record: Explanation, i: int, show: ShowToken) -> str:
    """Why the i-th shown token did not come: the first stage that removed it, or how far behind it was. "" for the one
    that came."""
    token, removed_by = record.ids[i], record.removed_by[i]
    if token == record.token_id:
        return ""
    if removed_by:
        return removed(record, i, removed_by, show)
    draw, came = record.draw, quoted(record.token_id, show)
    score, best, p = draw.scores[i], draw.scores[record.ids.index(draw.winner)], draw.probabilities[i]
    assert score is not None
    assert best is not None
    assert p is not None
    undrawn = record.origin == "forced" or (record.draft is not None and record.draft.rule != "exact")
    if undrawn and record.origin in INSTEAD:
        won = ", and would have won" if token == draw.winner else ""
        return f"{came} {INSTEAD[record.origin]}; this had p {chance(p)}{won}."
    if token == draw.winner:
        return f"These parameters draw it, but {came} came."
    if draw.greedy:
        return f"Its logit is {significant(best - score)} below the largest."
    return f"It could have come, with p {chance(p)}; its score was {significant(best - score)} behind."


INSTEAD = {"forced": "was forced", "accepted": "was drafted and accepted"}


def removed(record: Explanation, i: int, method: str, show: ShowToken) -> str:
    """Which stage removed it, and how near it was to staying."""
    if method == "model":
        return "The model itself ruled it out."
    if method in EDITS:
        return f"{EDITS[method]} banned it."
    k = next(k for k, step in enumerate(record.refinements) if step.method == method)
    step, p = record.refinements[k], before_step(record, k)[i]
    had = "" if p is None else f" with {percent(p)}"
    if method == "draft":
        return "A draft was refused, and this has no more probability than was proposed for it."
    if step.boundary is None:
        return f"{label_of(step)} removed it{had}."
    return f"{label_of(step)} cut it{had}; the least that stayed had {percent(step.boundary)}."
