"""The overlapped step: step N + 1 is planned and launched before the host knows what step N has drawn; while it runs, the draws of step N
are committed and sent. With N in flight, one call does this:

    wait for N's logits, begin its draws → plan N + 1, launch it → wait for N's draws, commit them → fill N + 1's masks on other threads

A token that is drawn and not known yet stands in `Sequence.tokens` as a reference to its draw (−1 − i, see runners.base.Batch), so that
planning counts it like any other. No reference outlives the call, and no sequence loses its slot or its blocks while there is one.

Everything that decides on a token (history, grammar, bans, forced tokens) is up to date when it is drawn: the output is that of step.py.
What was planned on a token that did not come to stand is void: nothing is drawn from it, and what it has written to the cache counts as
not computed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tailrace.engine.alone import begin
from tailrace.engine.batch import assemble
from tailrace.engine.commit import commit, settle
from tailrace.engine.device import Device
from tailrace.engine.draws import Guesses, Masks
from tailrace.engine.flight import Drawn, Flight, Prepared
from tailrace.engine.schedule import Plan, schedule
from tailrace.engine.step import apply, lose, score

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

log = logging.getLogger(__name__)


def step(engine: Engine, device: Device) -> None:
    """Finish the step in flight, and launch the next one; the engine's outbox holds what came of the first."""
    flight, engine.flight = engine.flight, None
    drawn = None if flight is None else land(engine, flight)
    try:
        advance(engine, device, drawn)
    except BaseException as error:  # an interrupt: nobody may go on from a token that is not there
        if drawn is not None:
            drawn.known()
            lose(engine, drawn.sequences, error)
        raise
    if engine.flight is not None:
        try:
            with engine.counters.timed("plan"):
                engine.flight.prepared = prepare(engine, engine.flight)
        except Exception:  # it is tried again when the step lands, where those in it can be failed
            log.exception("the draws of step %d could not be prepared", engine.counters.steps)


def advance(engine: Engine, device: Device, drawn: Drawn | None) -> None:
    """Launch the next step, and commit what was drawn: before it, where it must be known."""
    foreseen = False
    if drawn is not None and drawn.guessed:
        deliver(engine, drawn)
        drawn = None
    if drawn is not None:
        with engine.counters.timed("guess"):
            foreseen = engine.speculator.foresees(engine, drawn.sequences)
        drawn.refer()
    plan = planned(engine)
    # what is certain to come can be computed along where there is room; and who is preempted gives up only what has been computed
    if drawn is not None and (plan.preempt or not plan.work or (foreseen and plan.spare)):
        deliver(engine, drawn)
        drawn = None
        plan = planned(engine)
    failed = None
    with engine.counters.timed("plan"):
        copies = apply(engine, plan)
    if plan.work:
        engine.counters.steps += 1
        try:
            engine.flight = launch(engine, device, plan, copies, drawn)
        except Exception as error:  # a model or kernel that fails must not take the engine down with it
            log.exception("step %d failed", engine.counters.steps)
            failed = error
    if drawn is not None:
        deliver(engine, drawn)
    if failed is not None:
        lose(engine, [sequence for sequence, _ in plan.work], failed)


def land(engine: Engine, flight: Flight) -> Drawn | None:
    """Wait for the forward pass and begin the draws. None: the step has failed, or nobody draws."""
    timed = engine.counters.timed
    try:
        with timed("wait"):
            logits = flight.logits.result()
        standing = [(sequence, tokens) for sequence, tokens in flight.work if flight.stands(sequence)]
        with timed("sample"):
            score(engine, [part for part in flight.assembled.scored if flight.stands(part.sequence)], logits)
        with timed("mask"):
            prepared = ready(engine, flight)
        with timed("verify" if flight.guesses else "sample"):
            pending = begin(engine, prepared.draws, logits)
    except Exception as error:
        log.exception("a step in flight failed")
        lose(engine, [sequence for sequence, _ in flight.work], error)
        return None
    except BaseException:  # an interrupt: the step is still under way
        engine.flight = flight
        raise
    with timed("commit"):
        settle(engine, standing)
    return Drawn(flight, pending, prepared.masks.errors) if pending else None


def planned(engine: Engine) -> Plan:
    """The next step, without those that end with the token they are about to say."""
    with engine.counters.timed("plan"):
        going = [sequence for sequence in engine.running if sequence.room or sequence.tokens[-1] >= 0]
        return schedule(going, engine.waiting, engine.cache, engine.limits.scheduler, len(engine.free_slots))


def launch(engine: Engine, device: Device, plan: Plan, copies: list[tuple[int, int]], drawn: Drawn | None) -> Flight:
    """Begin the step's forward pass."""
    timed = engine.counters.timed
    if copies:
        with timed("forward"):
            engine.runner.copy_blocks(copies)
    guesses: Guesses = {}
    if drawn is None:
        with timed("guess"):
            guesses = engine.speculator.guess(engine, plan.work, plan.spare)
    with timed("plan"):
        previous = None if drawn is None else drawn.tokens()
        assembled = assemble(plan.work, guesses, engine.tables, engine.cache.block_size, previous)
        ends = {sequence: sequence.computed + tokens for sequence, tokens in plan.work}
        ends |= {sequence: len(sequence.tokens) for sequence in assembled.drawing}
    return Flight(plan.work, guesses, assembled, device.launch(assembled.batch), ends)


def deliver(engine: Engine, drawn: Drawn) -> None:
    """Wait for the draws and commit them."""
    flight = drawn.flight
    try:
        with engine.counters.timed("wait"):
            sampled = [(sequences, pending.wait()) for sequences, pending in drawn.pending]
    except Exception as error:
        log.exception("the draws of a step failed")
        drawn.known()
        lose(engine, [*drawn.sequences, *(sequence for sequence, _ in flight.work)], error)
        return
    drawn.known()
    with engine.counters.timed("commit"):
        commit(engine, flight.guesses, sampled, drawn.errors)


def prepare(engine: Engine, flight: Flight) -> Prepared:
    """The draws of those whose place in the step is right, by all that is known now; their masks begin to be filled."""
    drawing = [sequence for sequence in flight.assembled.drawing if flight.stands(sequence)]
    masks = Masks(engine.limits.vocab_size, engine.eos)
    draws = flight.assembled.draws(engine, drawing, flight.guesses, masks)
    return Prepared(draws, masks, engine.fill(masks))


def ready(engine: Engine, flight: Flight) -> Prepared:
    """As `prepare`, masks filled; what was prepared, unless somebody who was to draw has been aborted since."""
    prepared = flight.prepared
    if prepared is not None:
        engine.filled(prepared.masks, prepared.filling)
    if prepared is None or not all(flight.stands(sequence) for d in prepared.draws for sequence in d.sequences):
        prepared = prepare(engine, flight)
        engine.filled(prepared.masks, prepared.filling)
    return prepared
