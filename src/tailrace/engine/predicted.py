"""The predicted output of a sequence: what it has for drafts, and what of it has come."""

from __future__ import annotations

from tailrace.drafting.base import Draft
from tailrace.engine.sequence import Sequence


def count_ready(sequence: Sequence) -> int:
    """Return how many drafts the prediction has after the tokens so far; 0 if the place in it is unknown."""
    if sequence.prediction is None:
        return 0
    sequence.prediction.read(sequence.tokens, sequence.num_prompt)
    return sequence.prediction.num_ready


def count_found(sequence: Sequence) -> int:
    """Return how many of the predicted tokens the output has so far."""
    if sequence.prediction is None:
        return 0
    sequence.prediction.read(sequence.tokens, sequence.num_prompt)
    return sequence.prediction.num_found


def predict_output(sequence: Sequence, count: int) -> Draft:
    """Return at most `count` drafts from the prediction."""
    return Draft([] if sequence.prediction is None else sequence.prediction.draft(count))


def name_source(slot: int, predicted: bool) -> int:
    """Return the name under which the acceptance of a slot's drafts is learned: the drafter's, or the prediction's."""
    return ~slot if predicted else slot
