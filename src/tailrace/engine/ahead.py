"""The overlapped step: step N + 1 is planned and launched before the host has committed what step N has drawn, and, unless it guesses,
before the host knows it; while it runs, the draws of step N are committed and sent. With N in flight, one call does this:

    wait for N's logits, begin its draws → plan N + 1, launch it → wait for N's draws, commit them → fill N + 1's masks on other threads

A token that is drawn and not known yet stands in `Sequence.tokens` as a reference to its draw (−1 − i, see runners.base.Batch), so that
planning counts it like any other. Where guesses were verified, or are to be made, the draws are waited for before the launch: what they
are stands there then, and is still committed after it. Neither outlives the call, and no sequence loses its slot or its blocks while
there is one.

Everything that decides on a token (history, grammar, bans, forced tokens) is up to date when it is drawn: the output is that of step.py.
What was planned on a token that did not come to stand is void: nothing is drawn from it, and what it has written to the cache counts as
not computed.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tailrace.engine.batch import assemble
from tailrace.engine.device import Device
from tailrace.engine.draws import Guesses, Masks
from tailrace.engine.flight import Drawn, Flight, Prepared
from tailrace.engine.isolation import begin
from tailrace.engine.outputs import Said, collect, commit, settle
from tailrace.engine.scheduler import Plan, schedule
from tailrace.engine.speculation import Counts, give_back
from tailrace.engine.step import apply, lose, score
from tailrace.kernels.status import OK

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
    counts: Counts | None = None
    known = foreseen = False
    if drawn is not None:
        known = must_be_known(engine, drawn)
        with engine.counters.timed("guess"):
            foreseen = not known and engine.speculator.foresees(engine, drawn.sequences)
        drawn.refer()
    plan = planned(engine)
    if drawn is not None:
        if not known:
            with engine.counters.timed("guess"):
                counts = engine.speculator.counts(engine, plan.work)
            # what may or must come can be computed along where there is room
            known = plan.spare > 0 and (bool(counts) or foreseen)
        if known:
            drawn, plan = foretold(engine, drawn, plan)
    # who is preempted gives up only what has been computed
    if drawn is not None and (plan.preempt or not plan.work):
        deliver(engine, drawn)
        drawn = None
        plan = planned(engine)
    failed = None
    with engine.counters.timed("plan"):
        copies = apply(engine, plan)
    if plan.work:
        engine.counters.steps += 1
        try:
            engine.flight = launch(engine, device, plan, copies, drawn, counts)
        except Exception as error:  # a model or kernel that fails must not take the engine down with it
            log.exception("step %d failed", engine.counters.steps)
            failed = error
    if drawn is not None:
        deliver(engine, drawn)
    if failed is not None:
        lose(engine, [sequence for sequence, _ in plan.work], failed)


def must_be_known(engine: Engine, drawn: Drawn) -> bool:
    """How many guesses stand decides where everybody is; and a drafter that looks at what is computed must see it before there is more."""
    return bool(drawn.flight.guesses) or not drawn.pending or engine.speculator.watches(drawn.flight.work)


def foretold(engine: Engine, drawn: Drawn, plan: Plan) -> tuple[Drawn | None, Plan]:
    """Wait for the draws. What they are holds from here on, and is committed once the next step is under way; at once, where that decides
    on how to go on: where somebody ends, or a grammar must hear of it. None: the draws have failed.

    Args:
        plan: made when all guesses were taken to stand: what less of them leave is room. Another one comes back where it does not hold.
    """
    if not arrived(engine, drawn):
        return None, planned(engine)
    early: list[Said] = []
    later: list[Said] = []
    with engine.counters.timed("commit"):
        for one in drawn.said or ():
            (early if decides(engine, one) else later).append(one)
        commit(engine, early)
        for one in later:
            if one.guess.tokens:
                give_back(engine, one.sequence, one.stood)
        drawn.said = later
        drawn.foretell()
    if engine.speculator.observes:
        with engine.counters.timed("observe"):
            engine.speculator.observe(drawn.flight.assembled.seen, engine.runner)
    # who has ended is left out of a plan; whom a grammar has turned may be anywhere
    turned = any(one.sequence.slot >= 0 and one.sequence.constraint is not None for one in early)
    return drawn, planned(engine) if turned else plan


def decides(engine: Engine, one: Said) -> bool:
    """Where it goes on depends on more than the tokens that it has drawn: it may end or fail with them, they are its grammar's, or its
    guesses are drawn by a sampler that must have heard of them."""
    sequence, params = one.sequence, one.sequence.request.params
    drafter, slot = engine.speculator.drafter, engine.slots[sequence.slot]
    if drafter is not None and drafter.draws and (slot.history is not None or slot.moves or slot.state):
        return True
    if one.status != OK or sequence.constraint is not None or sequence.room <= len(one.tokens):
        return True
    return any(token in engine.eos or token in params.stop_token_ids for token in one.tokens)


def arrived(engine: Engine, drawn: Drawn) -> bool:
    """Wait for the draws, and learn from them. False: they have failed, and so have those that draw."""
    flight, speculator = drawn.flight, engine.speculator
    try:
        with engine.counters.timed("wait"):
            sampled = [(sequences, pending.wait()) for sequences, pending in drawn.pending]
    except Exception as error:
        log.exception("the draws of a step failed")
        drawn.known()
        lose(engine, [*drawn.sequences, *(sequence for sequence, _ in flight.work)], error)
        return False
    drawn.known()
    drawn.at = time.perf_counter()
    if flight.stride is not None:
        engine.counters.decoded(bool(flight.guesses), drawn.at - flight.since)
        speculator.stepped(flight.assembled.batch.token_ids.numel(), drawn.at - flight.since, flight.stride)
    if engine.flight is not None:  # it has been waiting for this one
        engine.flight.since = drawn.at
    with engine.counters.timed("commit"):
        drawn.said = collect(engine, flight.guesses, sampled, drawn.errors)
    return True


def land(engine: Engine, flight: Flight) -> Drawn | None:
    """Wait for the forward pass and begin the draws. None: the step has failed."""
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
    return Drawn(flight, pending, prepared.masks.errors)


def planned(engine: Engine) -> Plan:
    """The next step, without those that end with the token they are about to say."""
    with engine.counters.timed("plan"):
        going = [sequence for sequence in engine.running if sequence.room or sequence.tokens[-1] >= 0]
        return schedule(going, engine.waiting, engine.cache, engine.limits.scheduler, len(engine.free_slots))


def launch(
    engine: Engine,
    device: Device,
    plan: Plan,
    copies: list[tuple[int, int]],
    drawn: Drawn | None,
    counts: Counts | None,
) -> Flight:
    """Begin the step's forward pass. counts: of guesses, where they have been asked for."""
    timed, speculator = engine.counters.timed, engine.speculator
    if copies:
        with timed("forward"):
            engine.runner.copy_blocks(copies)
    guesses: Guesses = {}
    begun = ended = time.perf_counter()
    if drawn is None or drawn.said is not None:
        with timed("guess"):
            guesses = speculator.guess(engine, plan.work, plan.spare, counts)
        ended = time.perf_counter()
    with timed("plan"):
        previous = None if drawn is None else drawn.tokens()
        assembled = assemble(plan.work, guesses, engine.tables, engine.cache.block_size, previous)
        ends = {sequence: sequence.computed + tokens for sequence, tokens in plan.work}
        ends |= {sequence: len(sequence.tokens) for sequence in assembled.drawing}
    since = time.perf_counter()
    if drawn is not None and drawn.said is not None and (drawn.flight.guesses or counts):
        speculator.pace.held_up(since - drawn.at - (ended - begun))
    decodes = not any(sequence.prefilling or sequence.num_output == 0 for sequence, _ in plan.work)
    stride = speculator.pace.stride if decodes else None
    return Flight(plan.work, guesses, assembled, device.launch(assembled.batch), ends, stride, since)


def deliver(engine: Engine, drawn: Drawn) -> None:
    """Wait for the draws, unless they have arrived, and commit them."""
    if drawn.said is None and not arrived(engine, drawn):
        return
    drawn.known()
    with engine.counters.timed("commit"):
        commit(engine, drawn.said or [])


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
