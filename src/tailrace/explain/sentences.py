"""A record of why a token came (explain/record.py) → plain sentences, one per step.

This file imports no torch and knows no tokenizer. The caller gives a function: a token id → the text that is shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from string import Formatter

import msgspec

from tailrace.explain.numbers import (
    format_count,
    format_digits,
    format_frequency,
    format_percent,
    format_probability,
    format_value,
)
from tailrace.explain.record import DraftView, EditStep, Explanation, RefinementStep
from tailrace.params import NEUTRAL
from tailrace.request.method_order import STEPS, Values, Words

ROUNDING = 1.0 + 1e-6  # a probability may be known from two sums
ShowToken = Callable[[int], str]
Number = float | None


class Sentences(msgspec.Struct, frozen=True):
    """The sentences of one record. edits, refinements: one for each step. why_not: one for each shown token, "" for the
    token that came."""

    model: str
    edits: list[str]
    refinements: list[str]
    draw: str
    why_not: list[str]


def sentences_of(record: Explanation, show: ShowToken) -> Sentences:
    """Return all sentences of a record. show: a token's text in the form for readers."""
    return Sentences(
        model_sentence(record, show),
        [edit_sentence(record, k, show) for k in range(len(record.edits))],
        [refinement_sentence(record, k, show) for k in range(len(record.refinements))],
        draw_sentence(record, show),
        [why_not(record, i, show) for i in range(len(record.ids))],
    )


def quote_token(token: int, show: ShowToken) -> str:
    """Return a token's text in quotation marks."""
    return f"“{show(token)}”"


def label_of(step: EditStep | RefinementStep) -> str:
    """Return the method's name, with the values that the request gave it."""
    return fill_words(STEPS[step.method].label, step)


def fill_words(words: Words, step: EditStep | RefinementStep) -> str:
    """Return the words with the values of the step's fields."""
    values: Values = NEUTRAL | step.fields
    if callable(words):
        return words(values)
    return words.format(**{name: format_value(values[name]) for name in fields_in(words)})


@cache
def fields_in(words: str) -> tuple[str, ...]:
    """Return the names between the braces."""
    return tuple(name for _, name, _, _ in Formatter().parse(words) if name)


# ---- the model


def model_sentence(record: Explanation, show: ShowToken) -> str:
    """Return what the model's own distribution says of the token that came."""
    model, at = record.model, record.ids.index(record.token_id)
    who = "With guidance the model" if model.conditional is not None else "The model"
    p = format_percent(model.probabilities[at])
    ending = f"Its entropy is {format_digits(model.entropy)} nats."
    if model.logits[at] is None:
        return f"{who} ruled {quote_token(record.token_id, show)} out. {ending}"
    if model.ranks[at] == 1:
        return f"{who} has {quote_token(record.token_id, show)} first, with {p}. {ending}"
    first = f"{quote_token(record.ids[0], show)} with {format_percent(model.probabilities[0])}"
    rank = f"{who} has {quote_token(record.token_id, show)} at place {model.ranks[at]:,}, with {p}"
    return f"{rank}; first is {first}. {ending}" if model.ranks[0] == 1 else f"{rank}. {ending}"


# ---- edits


def edit_sentence(record: Explanation, k: int, show: ShowToken) -> str:
    """Return the effect of the record's k-th edit, and its effect on the token that came."""
    step, at = record.edits[k], record.ids.index(record.token_id)
    done = []
    if step.changed:
        done.append(f"changed the logits of {format_count(step.changed)}")
    if step.banned:
        done.append(f"banned {format_count(step.banned)}, which leaves {step.left:,}")
    before = (record.edits[k - 1].logits if k else record.model.logits)[at]
    return (
        f"{label_of(step)} {' and '.join(done)}{describe_logit_change(record.token_id, before, step.logits[at], show)}."
    )


def describe_logit_change(token: int, before: Number, after: Number, show: ShowToken) -> str:
    """Return the effect on the token's own logit, or ""."""
    if before is None or before == after:
        return ""
    if after is None:
        return f", {quote_token(token, show)} among them"
    return f"; that of {quote_token(token, show)} went from {before:.2f} to {after:.2f}".replace("-", "−")


# ---- refinements

ONE_LEFT = "had nothing to cut: one token is left"


def refinement_sentence(record: Explanation, k: int, show: ShowToken) -> str:
    """Return the effect of the record's k-th refinement, and how near the token that came was to being removed."""
    step, at = record.refinements[k], record.ids.index(record.token_id)
    entry = STEPS[step.method]
    numbers = {
        "kept": f"{step.kept:,}",
        "before": format_count(step.before),
        "cut": f"{step.before - step.kept:,}",
        "mass": format_percent(step.mass),
        "gone": format_percent(1.0 - step.mass),
    }
    if entry.moves:
        said = f"{fill_words(entry.moves, step)}; its entropy is {format_digits(step.entropy)} nats now"
        said += f", and {format_count(step.kept)} of {step.before:,} can still come" if step.kept < step.before else ""
    elif step.kept == step.before:
        said = (entry.idle if step.before > 1 else ONE_LEFT).format(**numbers)
    else:
        said = entry.cut.format(**numbers)
    return f"{label_of(step)} {said}.{close_call(record, k, at, show)}"


def before_step(record: Explanation, k: int) -> list[Number]:
    """Return the shown tokens' probabilities before the k-th refinement."""
    if k:
        return record.refinements[k - 1].probabilities
    return list(record.edits[-1].probabilities if record.edits else record.model.probabilities)


def close_call(record: Explanation, k: int, at: int, show: ShowToken) -> str:
    """Return a sentence if the token was less than twice as likely as the least likely kept one, else ""."""
    step, p = record.refinements[k], before_step(record, k)[at]
    if step.boundary is None or p is None or step.probabilities[at] is None or step.kept == 1:
        return ""
    least = format_percent(step.boundary)
    if p >= 2.0 * step.boundary:
        return ""
    if p <= step.boundary * ROUNDING:
        return f" {quote_token(record.token_id, show)} was the least likely that stayed, with {format_percent(p)}."
    return f" {quote_token(record.token_id, show)} was near the boundary: {format_percent(p)}, where {least} stayed."


# ---- the draw


def draw_sentence(record: Explanation, show: ShowToken) -> str:
    """Return how the token was chosen."""
    draw, draft = record.draw, record.draft
    if record.origin == "forced":
        return f"It was forced. {describe_winner(record, show)}"
    if draft is not None and record.origin == "accepted" and draft.rule != "exact":
        return f"{describe_accepted_draft(draft, show)} {describe_winner(record, show)}"
    opening = ""
    if draft is not None:
        taken = record.origin == "accepted"
        opening = (
            f"The draft {quote_token(draft.token, show)} is what is drawn. "
            if taken
            else describe_refused_draft(draft, show)
        )
    if record.token_id != draw.winner:
        return f"{opening}It is not what these parameters draw: {quote_token(draw.winner, show)} wins."
    if draw.runner_up is None or draw.margin is None:
        return f"{opening}It was the only token that was left."
    second = quote_token(draw.runner_up, show)
    if draw.greedy:
        behind = f"{format_digits(draw.margin)} above {second}" if draw.margin else f"as large as that of {second}"
        return f"{opening}It has the largest logit, {behind}."
    p = draw.probabilities[record.ids.index(record.token_id)] or 0.0
    won = f"it won by {format_digits(draw.margin)} over {second}."
    return f"{opening}p was {format_probability(p)}: drawn {format_frequency(p)}; {won}"


def describe_winner(record: Explanation, show: ShowToken) -> str:
    """Return which token would have been drawn."""
    if record.draw.winner == record.token_id:
        return "It would have been drawn, too."
    return f"{quote_token(record.draw.winner, show)} would have been drawn."


def describe_accepted_draft(draft: DraftView, show: ShowToken) -> str:
    """Return why a draft was accepted."""
    draw, proposal = f"The draft {quote_token(draft.token, show)} was accepted", describe_proposal(draft)
    if draft.bound is None:
        return f"{draw}, with p {format_probability(draft.p)}{proposal}."
    return f"{draw}: its p, {format_probability(draft.p)}, is above {format_probability(draft.bound)}{proposal}."


def describe_refused_draft(draft: DraftView, show: ShowToken) -> str:
    """Return why a draft was refused."""
    draw, proposal = f"The draft {quote_token(draft.token, show)} was refused", describe_proposal(draft)
    if draft.bound is None:
        return f"{draw} (p {format_probability(draft.p)}{proposal}). "
    return f"{draw}: its p, {format_probability(draft.p)}, is not above {format_probability(draft.bound)}{proposal}. "


def describe_proposal(draft: DraftView) -> str:
    """Return the probability with which the draft was proposed, or ""."""
    return "" if draft.q is None else f", proposed with q {format_probability(draft.q)}"


# ---- why not


def why_not(record: Explanation, i: int, show: ShowToken) -> str:
    """Return why the i-th shown token did not come; "" for the token that came.

    The reason is the first stage that removed it, or how far its score was behind.
    """
    token, removed_by = record.ids[i], record.removed_by[i]
    if token == record.token_id:
        return ""
    if removed_by:
        return describe_removal(record, i, removed_by, show)
    draw, came = record.draw, quote_token(record.token_id, show)
    score, best, p = draw.scores[i], draw.scores[record.ids.index(draw.winner)], draw.probabilities[i]
    assert score is not None
    assert best is not None
    assert p is not None
    undrawn = record.origin == "forced" or (record.draft is not None and record.draft.rule != "exact")
    if undrawn and record.origin in INSTEAD:
        won = ", and would have won" if token == draw.winner else ""
        return f"{came} {INSTEAD[record.origin]}; this had p {format_probability(p)}{won}."
    if token == draw.winner:
        return f"These parameters draw it, but {came} came."
    if draw.greedy:
        return f"Its logit is {format_digits(best - score)} below the largest."
    return f"It could have come, with p {format_probability(p)}; its score was {format_digits(best - score)} behind."


INSTEAD = {"forced": "was forced", "accepted": "was drafted and accepted"}


def describe_removal(record: Explanation, i: int, method: str, show: ShowToken) -> str:
    """Return which stage removed the token, and how near it was to staying."""
    if method == "model":
        return "The model itself ruled it out."
    for edit in record.edits:
        if edit.method == method:
            return f"{label_of(edit)} banned it."
    k = next(k for k, step in enumerate(record.refinements) if step.method == method)
    step, p = record.refinements[k], before_step(record, k)[i]
    had = "" if p is None else f" with {format_percent(p)}"
    if method == "draft":
        return "A draft was refused, and this has no more probability than was proposed for it."
    if step.boundary is None:
        return f"{label_of(step)} removed it{had}."
    return f"{label_of(step)} cut it{had}; the least that stayed had {format_percent(step.boundary)}."
