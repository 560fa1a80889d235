"""Explains earlier outputs: why their tokens came, and whether the sampler can have drawn them.

The prompt and the output are computed as a prompt. A walker follows the computation along the output. At each needed
place, the sampler draws from the row with the slot's state at that place. Then the output's token is committed,
whatever was drawn. History, states, forced tokens, grammars and budgets are those of the live request, because the same
code changes them. Rows wait for the walker. All walkers together take at most the time of a step that one request may.

Tokens that came from drafts by a rule other than exact can't be drawn again, since the number of drafts is unknown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import torch

from tailrace.engine.appending import TokenAppender
from tailrace.engine.checks import NewToken
from tailrace.engine.draft_tokens import NO_DRAFTS
from tailrace.engine.draws import Masks, SampleSkippedError
from tailrace.engine.ending import Ending
from tailrace.engine.explanations import make_disagreement_error
from tailrace.engine.isolation import Isolated
from tailrace.engine.outputs import OutputProcessor
from tailrace.engine.sequence import LIVING, Sequence
from tailrace.errors import EngineError, ParameterError, RowError, TailraceError, nest_error
from tailrace.explain.record import Explanation
from tailrace.kernels.rows import Guidance, Rows
from tailrace.kernels.status import EMPTY, MESSAGES, OK
from tailrace.params import SamplingParams
from tailrace.sampling import Sampler, SequenceState, Slots
from tailrace.sampling.backends.reference import mask_of_row
from tailrace.sampling.explain import explain_row, guided_pair
from tailrace.sampling.guidance import raw_row
from tailrace.sampling.reference import BadRowError, make_target
from tailrace.sampling.slot import Slot
from tailrace.sampling.validation import CALLER_FIELDS
from tailrace.wire.messages import Difference, Replay, Replayed, Why


@dataclass(slots=True)
class ReplayWalk:
    """The walk along one output.

    - sequence: the computed one.
    - walker: the sequence up to the current place.
    - places: needed indexes in the output, ascending.
    - at: how many are done.
    - wanted: the places to explain.
    - what_if: a slot of other parameters, used only for records.
    - unsure: number of tokens that differ from the draw, but may have come from drafts.
    - stop_token_id: the last token, if it ended the output.
    """

    sequence: Sequence
    walker: Sequence
    replay: Replay
    places: list[int]
    wanted: frozenset[int]
    what_if: Slots | None
    at: int = 0
    difference: Difference | None = None
    unsure: int = 0
    stop_token_id: int | None = None
    records: list[Explanation] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """True if the rows of the next place have arrived."""
        members = self.sequence.pair
        return self.at < len(self.places) and all(m.wanted is not None and m.wanted.waiting for m in members)

    def note_difference(self, position: int, why: Why, token: int | None = None) -> None:
        """Store a token of the output that can't have been drawn. Only the first one is kept."""
        if self.difference is None and position < len(self.replay.output):
            self.difference = Difference(position, why, token)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The draw at a place. logits: [1, V], with guidance [2, V]. token: None: the output ends before it."""

    logits: torch.Tensor
    rows: Rows
    token: int | None


class Replays:
    """All walks along outputs.

    Args:
        new_masks: makes the masks of a row.
    """

    def __init__(self, outputs: OutputProcessor, sampler: Sampler, new_masks: Callable[[], Masks]) -> None:
        self.lifecycle, self.slots, self.sampler = outputs.lifecycle, outputs.slots, sampler
        self.appender: TokenAppender = outputs.appender
        self._host_s, self._new_masks = outputs.limits.host_ms / 1e3, new_masks
        self._walks: dict[Sequence, ReplayWalk] = {}
        self._last: tuple[int, int] = (0, 0)  # Request.order of the last one served; the next turns begin after it

    def step(self) -> None:
        """Continue the walks in turns, one place at a time, until the time of a step is used up; at least one place.

        New records are sent. A finished walk ends its sequence.
        """
        self.appender.begin_step()
        self._walks = {sequence: walk for sequence, walk in self._walks.items() if sequence.phase in LIVING}
        turns = deque(sorted(self.lifecycle.replays, key=lambda s: (s.request.order <= self._last, s.request.order)))
        begun_s, looked = time.thread_time(), False
        while turns and not (looked and time.thread_time() - begun_s >= self._host_s):
            sequence = turns.popleft()
            with Isolated("the output could not be explained", sequence.request.id) as attempt:
                walk = self._walks.get(sequence) or self._begin_walk(sequence)
                if walk.ready:
                    looked, self._last = True, sequence.request.order
                    if self._replay_place(walk):
                        turns.append(sequence)
            if attempt.error is not None:
                self._walks.pop(sequence, None)
                self.lifecycle.fail([(sequence, attempt.error)])
        for walk in list(self._walks.values()):
            self._send_records(walk)

    def _begin_walk(self, sequence: Sequence) -> ReplayWalk:
        walker, replay = sequence.walker, sequence.request.replay
        assert walker is not None
        assert replay is not None
        assert sequence.wanted is not None
        places = [place - walker.num_prompt for place in sequence.wanted.places]
        what_if = None if replay.what_if is None else self._make_what_if(sequence, walker, replay.what_if)
        walk = self._walks[sequence] = ReplayWalk(
            sequence, walker, replay, places, frozenset(replay.positions), what_if
        )
        return walk

    def _make_what_if(self, sequence: Sequence, walker: Sequence, params: SamplingParams) -> Slots:
        """Return a slot for the same sequence with other parameters.

        Raises:
            ParameterError: naming the field, inside what_if.
        """
        slots = Slots(1, self.slots.vocab_size)
        try:
            slots.add(
                0,
                params,
                key=walker.key,
                prompt=walker.tokens,
                eos_token_ids=sequence.request.eos_token_ids,
                sequence_state=SequenceState(forced=walker.sequence_state.forced),  # the walker's, also later on
                handled_by_caller=(*CALLER_FIELDS, "seed"),
            )
        except ParameterError as error:
            raise nest_error("what_if", error) from error
        return slots

    def _send_records(self, walk: ReplayWalk) -> None:
        """Send the records of this step."""
        sequence, over = walk.sequence, walk.at == len(walk.places)
        if not walk.records and not over:
            return
        request, records = sequence.request, walk.records
        walk.records = []
        cached = 0 if sequence.started else sequence.num_cached
        sequence.started = True
        message = Replayed(request.id, request.epoch, records, walk.difference, walk.unsure, cached, walk.stop_token_id)
        self.lifecycle.send(sequence, message)
        if over:
            self.lifecycle.end(sequence, Ending("stop"))

    def _replay_place(self, walk: ReplayWalk) -> bool:
        """Process the next place. Return False if its row is not ready; the row stays."""
        index = walk.places[walk.at]
        while walk.walker.num_output < index:
            self._commit_token(walk)
        drawn = self._redraw_token(walk)
        if drawn is None:
            return False
        record, other, wanted = None, drawn.token != walk.replay.output[index], index in walk.wanted
        if other or (wanted and walk.what_if is None):
            record = self._explain_place(walk, drawn, None)
            if record.origin != "forced" and drawn.token not in (None, winner := record.draw.winner):
                raise make_disagreement_error([drawn.token], [winner])
            if other:
                self._classify_difference(walk, drawn, record)
        if walk.what_if is not None and (wanted or walk.what_if[0].state):
            record = self._explain_place(walk, drawn, walk.what_if[0])
        ended = self._commit_token(walk, drawn)
        if wanted and record is not None:
            walk.records.append(record if ended is None else msgspec.structs.replace(record, ended=ended))
        for member in walk.sequence.pair:
            assert member.wanted is not None
            member.wanted.waiting.popleft()
        walk.at += 1
        return True

    def _redraw_token(self, walk: ReplayWalk) -> Drawn | None:
        """Draw a token here, by the walker's state, and again if the text must be closed now. None: not known yet.

        Raises:
            TailraceError: no token can be drawn, or the grammar fails.
        """
        walker = walk.walker
        logits = torch.stack([m.wanted.waiting[0] for m in walk.sequence.pair if m.wanted is not None])
        scale = [walker.request.params.guidance_scale]
        guidance = Guidance.of([1], scale) if logits.shape[0] > 1 else None
        while True:
            masks = self._new_masks()
            place, filled = masks.of([walker], [NO_DRAFTS])
            masks.start()
            masks.wait()
            if (error := masks.errors.get(walker.slot)) is not None:
                if isinstance(error, SampleSkippedError):
                    return None
                raise error if isinstance(error, TailraceError) else RowError(f"grammar: {error}")
            at = len(walker.tokens)
            rows = Rows.plain([walker.slot], [0], [at], mask=place, masks=filled, guidance=guidance)
            sampled = self.sampler(logits, rows)
            if (status := int(sampled.status[0])) != OK:
                raise make_undrawable_error(walker, status)
            token = int(sampled.token_ids[0, 0])
            if walker.constraint is None:
                return Drawn(logits, rows, token)
            instead = self.appender.closing(walker, walker.constraint, token)
            if walker.constraint.searching:
                return None
            if instead is None or instead.ending is not None:
                return Drawn(logits, rows, token if instead is None else None)

    def _explain_place(self, walk: ReplayWalk, drawn: Drawn, slot: Slot | None) -> Explanation:
        """Return the record of the output's token. slot: of other parameters."""
        raw, token = raw_row(drawn.logits, drawn.rows, 0).float().cpu(), walk.replay.output[walk.places[walk.at]]
        allowed, guided = mask_of_row(drawn.rows, 0), guided_pair(drawn.logits, drawn.rows, 0)
        position, options = len(walk.walker.tokens), walk.replay.options
        own = self.slots[walk.walker.slot] if slot is None else slot
        try:
            record = explain_row(raw, own, position, options, allowed, guided, token)
            if slot is not None and slot.state:  # it learns from the tokens that came
                make_target(raw, slot, position, allowed)
                slot.updates[:] = [slot.update_of(token)]
        except BadRowError as error:
            index = walk.places[walk.at]
            if slot is None:
                raise EngineError(
                    f"explain: the row of output token {index} was drawn from, and now: {error}"
                ) from error
            raise ParameterError(f"what_if: at output token {index}: {error}", "what_if") from error
        return record

    def _classify_difference(self, walk: ReplayWalk, drawn: Drawn, record: Explanation) -> None:
        """Store that the output's token differs from the draw, and whether it may have come otherwise."""
        index, place = walk.places[walk.at], record.ids.index(record.token_id)
        if drawn.token is None:
            walk.note_difference(index, "ended")
        elif record.origin == "forced":
            walk.note_difference(index, "forced", drawn.token)
        elif record.removed_by[place] == "grammar":
            walk.note_difference(index, "grammar", drawn.token)
        elif self._may_be_drafted(walk.walker) and record.draw.probabilities[place] is not None:
            walk.unsure += 1
        else:
            walk.note_difference(index, "drawn", drawn.token)

    def _may_be_drafted(self, walker: Sequence) -> bool:
        """Return whether its tokens may have come from drafts, by a rule under which they may differ from the draw."""
        speculator, params = self.lifecycle.speculator, walker.request.params
        asked = params.speculation is None or params.speculation.max_drafts != 0
        return speculator.drafter is not None and asked and not params.greedy and speculator.rule(walker) != "exact"

    def _commit_token(self, walk: ReplayWalk, drawn: Drawn | None = None) -> str | None:
        """Append the output's next token. Return what it ends, if anything. drawn: the draw at its place, if it was
        made."""
        walker, index = walk.walker, walk.walker.num_output
        token, ends = walk.replay.output[index], None
        if walk.what_if is not None:
            walk.what_if.commit([0], [[token]])
        try:
            outcome = self.appender.append(walker, NewToken(token, None))
            ends = outcome.ends
            if outcome.ending is not None:
                walk.note_difference(index + 1, "ended")
                walk.stop_token_id = outcome.ending.stop_token_id
        except RowError:  # the grammar does not allow it, so the grammar no longer applies
            walk.note_difference(index, "grammar", None if drawn is None else drawn.token)
            walker.constraint = None
        return ends


def make_undrawable_error(walker: Sequence, status: int) -> TailraceError:
    """Return the error of a row from which no token can be drawn."""
    at, excluding = f"at output token {walker.num_output}", walker.request.params.excluding
    if status == EMPTY and excluding:
        return ParameterError(f"{', '.join(excluding)}: no token is left {at}", excluding[0])
    return RowError(f"{MESSAGES[status]} {at}")
