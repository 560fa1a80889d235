"""A value of every field of SamplingParams, for tests that go through all of them: made from its type and range, or
given here where such a one tells nothing. A new number or switch needs nothing here.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from tailrace.explain.record import ExplainOptions
from tailrace.params import FIELDS, voids_of
from tailrace.request.fields import Field
from tailrace.request.options import Grammar, MarkedSpan, RepetitionDetection, Speculation, ThinkingBudget, Watermark

EXAMPLES: dict[str, Any] = {
    "dry_sequence_breakers": (2,),
    "exponential_decay_length_penalty": (2, 1.5),
    "logit_bias": {9: 50.0},
    "sequence_bias": (((1, 2, 9), 50.0),),
    "allowed_token_ids": (4, 5),
    "bad_words": ((0,), (3,)),
    "processors": {"mine": {"x": 1}},
    "watermark": Watermark(kind="kgw", key=3),
    "sampler_order": ("top_p", "temperature"),
    "forced_token_ids": (9,),
    "logprob_token_ids": (3, 4),
    "prompt_logprob_token_ids": ((3, 4), (), (5,)),
    "banned_strings": ("bad",),
    "banned_regex": ("x[0-9]",),
    "stop": ("a", "b"),
    "stop_regex": ("[0-9]+x",),
    "stop_outside": (MarkedSpan("<", ">"),),
    "stop_token_ids": (1, 2),
    "repetition_detection": RepetitionDetection(max_pattern_size=4, min_count=3),
    "thinking": ThinkingBudget(max_tokens=3, span=MarkedSpan("<", ">"), closing_token_ids=(1,)),
    "grammar": Grammar(kind="regex", source="a"),
    "negative_prompt": (1,),
    "speculation": Speculation(max_drafts=2),
    "prediction": (5, 6),
    "shown_token_ids": (1,),
    "explain": ExplainOptions(top=3, ids=(5,)),
}
# the fields that the sampler acts on and that change what is drawn
DRAWN = {
    name: field
    for name, field in FIELDS.items()
    if field.kind in ("edit", "reshape", "truncation") and not field.instead
}


def example(field: Field) -> Any:
    """A value at which the field does something."""
    if field.name in EXAMPLES:
        return EXAMPLES[field.name]
    if field.type is bool:
        return not field.default
    if get_origin(field.type) is Literal:
        return next(value for value in get_args(field.type) if value != field.default)
    assert field.range is not None, f"{field.name}: give a value in EXAMPLES"
    start = field.default or 0
    if field.range.whole:
        return min(start + 2, int(field.range.high))
    if field.range.high <= 1.0:
        return 0.5 if start != 0.5 else 0.25
    return start + 1.0


def company(name: str) -> dict[str, Any]:
    """The field with an example, beside the first of those without one of which it has no effect."""
    needed = FIELDS[name].needs[:1]
    return {of: example(FIELDS[of]) for of in (*needed, name)}


def uncovered(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """An own case for each truncation, or reshaping of probabilities, that no case has."""
    named = {name for fields in cases.values() for name in fields}
    wanted = (
        name
        for name, field in DRAWN.items()
        if field.refinement and field.kind != "edit" and not field.needs and name not in named
    )
    return {name: company(name) for name in wanted}


def replaced_by_mirostat() -> list[str]:
    """The switches that are refused beside mirostat."""
    return [name for name, field in FIELDS.items() if "mirostat" in voids_of(field) and not field.needs]
