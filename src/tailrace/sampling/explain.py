"""Explanations of tokens: one row walks through the reference pipeline, and every step is kept.

The steps are those of sampling/reference.py and sampling/verify.py; no method has a second implementation. The slot
does not change. record.py makes the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch

from tailrace.errors import ParameterError
from tailrace.explain.record import DraftView, ExplainOptions, Explanation, Origin
from tailrace.kernels.constants import DRAW_STREAM
from tailrace.kernels.needs import SlotNeeds, check_rows
from tailrace.kernels.program import Mask
from tailrace.kernels.rows import Rows
from tailrace.kernels.types import readable
from tailrace.params import SamplingParams
from tailrace.sampling.backends.base import drafted_requests
from tailrace.sampling.backends.reference import draft_rows_of
from tailrace.sampling.record import Outcome, Pair, Record, Walked
from tailrace.sampling.reference import Choice, Target, make_choice, target_of, walk_steps
from tailrace.sampling.sequence_state import SequenceState
from tailrace.sampling.slot import Slot
from tailrace.sampling.slots import Slots
from tailrace.sampling.validation import CALLER_FIELDS, check_kind
from tailrace.sampling.verify import DraftRows, follow_rule, rule_of


def explain_row(
    raw: torch.Tensor,
    slot: Slot,
    position: int,
    options: ExplainOptions,
    allowed: Mask | None = None,
    guided: Pair | None = None,
    token: int | None = None,
) -> Explanation:
    """Explain the token that this row decides. (More than six parameters: a row, its slot, and everything else that its
    token depends on.)

    Args:
        raw: float32 [V] on the CPU, not modified: the model's own row. With guidance it is the combined row.
        slot: the state from which the row is drawn. It does not change.
        position: index of the token in the whole sequence. The noise's counter.
        allowed: the grammar's mask of this row.
        guided: the two rows behind `raw`. The conditional one comes first.
        token: the final token. None: the token that this row decides (forced, or drawn).

    Raises:
        BadRowError: nothing can be drawn from the row.
        ParameterError: the options name a token outside the vocabulary.
    """
    options.check_vocab(raw.numel())
    with preserve_slot(slot):
        walked = walk_row(raw, slot, position, allowed)
    choice = Choice(slot.forced) if slot.forced is not None else make_choice(walked.candidates, slot, position)
    outcome = Outcome(choice.token if token is None else token, origin_of(walked, slot), choice)
    return Record(walked, slot, outcome).make_record(options, guided)


def what_if(slot: Slot, params: SamplingParams, tokens: Sequence[int] | None = None) -> Slot:
    """Return the slot with other parameters, for `explain_row`. The sequence, the key and the forced tokens are the
    same.

    Args:
        slot: not modified. Its learnt state is copied. Methods without a learnt state start at their first values.
        tokens: prompt and output. They are needed if the slot has no history, because none of its own methods reads
            one.

    Raises:
        ParameterError: the parameters name a token outside the vocabulary or an unknown processor. Or they need a
            history, and neither `slot` nor `tokens` has it.
    """
    known = slot.history.tokens if slot.history is not None else tokens
    count = slot.num_prompt + slot.num_output
    if known is not None and len(known) != count:
        raise ParameterError(f"tokens must be the {count} ids of prompt and output, got {len(known)}", "tokens")
    spoken = [0] * count if known is None else known
    sequence_state = SequenceState()
    sequence_state.copy_from(slot.sequence_state)
    slots = Slots(1, slot.vocab_size)
    slots.add(
        0,
        params,
        prompt=spoken[: slot.num_prompt],
        key=slot.key,
        output=spoken[slot.num_prompt :],
        eos_token_ids=slot.eos_token_ids,
        sequence_state=sequence_state,
        handled_by_caller=("seed", *CALLER_FIELDS),
    )
    if known is None and slots[0].history is not None:
        raise ParameterError("tokens must be given: these parameters look at them, and the slot's own don't", "tokens")
    return slots[0]


def explain_rows(
    slots: Slots, logits: torch.Tensor, rows: Rows, options: Sequence[ExplainOptions | None]
) -> list[list[Explanation]]:
    """Explain the tokens of each request of a step. A request without options, or that can't be drawn, has an empty
    list. See `Sampler.explain`."""
    explained: list[list[Explanation]] = [[] for _ in options]
    for i, wanted in enumerate(options):
        if wanted is not None:
            draft_rows = draft_rows_of(slots, logits, rows, i)
            # If the step was drawn already, the states are updated with exactly these values.
            draft_rows.updates.extend(draft_rows.slot.updates)
            guided = [guided_pair(logits, rows, row) for row in range(int(rows.start[i]), int(rows.start[i + 1]))]
            with preserve_slot(draft_rows.slot):
                explained[i] = explain_drafts(draft_rows, wanted, guided)
    return explained


def check_options(options: Sequence[ExplainOptions | None], count: int, vocab_size: int) -> None:
    """Raise ParameterError unless there is one entry per request, and the named tokens are in the vocabulary."""
    if not isinstance(options, Sequence) or len(options) != count:
        raise ParameterError(
            f"options must be ExplainOptions, or a list of them for {count} requests, got {options!r:.100}", "options"
        )
    for one in options:
        if one is not None:
            check_kind("options", one, ExplainOptions)
            one.check_vocab(vocab_size)


def check_step(slots: Slots, logits: torch.Tensor, rows: Rows) -> None:
    """Check a step as every backend does before it draws.

    Raises:
        ParameterError: see `Backend.sample`.
    """
    needs = SlotNeeds.of(len(slots.slots))
    for owner in set(rows.slot.tolist()).intersection(range(len(slots.slots))):
        if (slot := slots.slots[owner]) is not None:
            needs.write(owner, slot.program)
    check_rows(readable(logits), rows, needs)
    drafted_requests(slots, rows)


def explain_drafts(rows: DraftRows, options: ExplainOptions, guided: Sequence[Pair | None]) -> list[Explanation]:
    """Explain the tokens that these rows decide. Afterwards the slot's pending updates are those of the tokens."""
    slot, drafts, walked = rows.slot, rows.drafts, list[Walked]()
    rule = rule_of(rows)

    def record_walk(raw: torch.Tensor, slot: Slot, position: int, allowed: Mask | None) -> Target:
        walked.append(walk_row(raw, slot, position, allowed))
        return target_of(raw, walked[-1].candidates, slot, position)

    def make_explanation(row: Target, choice: Choice) -> Explanation:
        j = next(places)
        draft, origin = None, origin_of(walked[j], slot)
        if j < len(drafts.tokens):
            token = drafts.tokens[j]
            q = None if drafts.q is None else float(drafts.q[j, token])
            draft = DraftView(rule, j, token, float(row.p[token]), q, choice.bound)
            taken = choice.token == token and choice.stream == DRAW_STREAM
            origin = origin if origin == "forced" else "accepted" if taken else "replaced"
        return Record(walked[j], slot, Outcome(choice.token, origin, choice, draft)).make_record(options, guided[j])

    places, rows.look = count(), record_walk
    return follow_rule(rows, make_explanation)[0]


def origin_of(walked: Walked, slot: Slot) -> Origin:
    """Return the origin of the token of a row without a draft."""
    return "forced" if walked.forced is not None else "greedy" if slot.params.greedy else "drawn"


def guided_pair(logits: torch.Tensor, rows: Rows, row: int) -> Pair | None:
    """Return the conditional and the unconditional logits of a guided row, else None."""
    if rows.guidance is None or (companion := int(rows.guidance.companion[row])) < 0:
        return None
    return logits[int(rows.source[row])].float().cpu(), logits[companion].float().cpu()


@contextmanager
def preserve_slot(slot: Slot) -> Iterator[None]:
    """Restore what a draw changes in the slot."""
    basis, updates = slot.basis, list(slot.updates)
    try:
        yield
    finally:
        slot.basis, slot.updates[:] = basis, updates


def walk_row(raw: torch.Tensor, slot: Slot, position: int, allowed: Mask | None) -> Walked:
    """Run `reference.walk_steps` and keep the steps.

    Raises:
        BadRowError: nothing can be drawn from the row.
    """
    walked: Walked | None = None
    edited_rows: list[tuple[str, torch.Tensor]] = []
    for method, row, candidates in walk_steps(raw, slot, position, allowed):
        if candidates is None:
            edited_rows.append((method, row.clone()))
        elif walked is None:
            walked = Walked(slot.num_output, position, slot.forced, raw, row, candidates, edited_rows)
        else:
            walked.refined.append((method, candidates))
    assert walked is not None
    return walked
