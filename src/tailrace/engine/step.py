"""The step, on one screen: plan → guess → forward → sample → commit. ahead.py has the same parts in the order in which they overlap."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from tailrace.engine.batch import Scored, assemble
from tailrace.engine.draws import Masks
from tailrace.engine.isolation import alone, begin, fail
from tailrace.engine.outputs import collect, commit, settle
from tailrace.engine.scheduler import Plan, schedule
from tailrace.engine.sequence import LIVING, Sequence
from tailrace.errors import EngineError, RowError
from tailrace.sampling.prompt_logprobs import replay
from tailrace.wire.messages import PromptLogprobs

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

log = logging.getLogger(__name__)


def step(engine: Engine) -> None:
    """Compute and draw once; the engine's outbox holds what came of it."""
    timed, speculator = engine.counters.timed, engine.speculator
    with timed("plan"):
        plan = schedule(engine.running, engine.waiting, engine.cache, engine.limits.scheduler, len(engine.free_slots))
        copies = apply(engine, plan)
        if not plan.work:
            return
    engine.counters.steps += 1
    decodes = not any(sequence.prefilling or sequence.num_output == 0 for sequence, _ in plan.work)
    try:
        if copies:  # first: a drafter may read and write the target's cache
            with timed("forward"):
                engine.runner.copy_blocks(copies)
        with timed("guess"):
            guesses = speculator.guess(engine, plan.work, plan.spare)
        with timed("plan"):
            assembled = assemble(plan.work, guesses, engine.tables, engine.cache.block_size)
            masks = Masks(engine.limits.vocab_size, engine.eos)
            draws = assembled.draws(engine, assembled.drawing, guesses, masks)
        start = time.perf_counter()
        filling = engine.fill(masks)  # on other threads, while the model computes
        with timed("forward"):
            logits = engine.runner.forward(assembled.batch)
        with timed("mask"):
            engine.filled(masks, filling)
        with timed("verify" if guesses else "sample"):
            sampled = [(sequences, pending.wait()) for sequences, pending in begin(engine, draws, logits)]
            score(engine, assembled.scored, logits)
    except Exception as error:  # a model or kernel that fails must not take the engine down with it
        log.exception("step %d failed", engine.counters.steps)
        lose(engine, [sequence for sequence, _ in plan.work], error)
        return
    if decodes:
        took_s = time.perf_counter() - start
        speculator.stepped(assembled.batch.token_ids.numel(), took_s)
        engine.counters.decoded(bool(guesses), took_s)
    with timed("commit"):
        settle(engine, plan.work)
        commit(engine, collect(engine, guesses, sampled, masks.errors))
    if speculator.observes:
        with timed("observe"):
            speculator.observe(assembled.seen, engine.runner)


def apply(engine: Engine, plan: Plan) -> list[tuple[int, int]]:
    """Make the plan true: preempt, admit, reserve. Returns the block copies to make before the forward pass."""
    for sequence in plan.preempt:
        engine.preempt(sequence)
    for sequence, cached in plan.admit:  # all cached blocks are taken before any fresh one can displace them
        with alone("the request could not be begun", sequence.request.id, lambda e, s=sequence: fail(engine, s, e)):
            engine.admit(sequence, cached)
    plan.work = [(member, tokens) for member, tokens in plan.work if member.slot >= 0]
    copies = []
    for sequence, tokens in plan.work:
        first = sequence.computed // engine.cache.block_size
        made = engine.cache.reserve(sequence, sequence.computed + tokens)
        engine.tables.write(sequence, first if made else None)
        copies += made
    return copies


def score(engine: Engine, scored: list[Scored], logits: torch.Tensor) -> None:
    """Logprobs of prompt tokens go out."""
    for part in scored:
        sequence, request, end = part.sequence, part.sequence.request, part.start + part.count
        if part.count == 0 or sequence.state not in LIVING:
            continue
        rows, tokens = logits[part.row : part.row + part.count], sequence.tokens[part.start : end]
        with alone("prompt_logprobs", request.id, lambda e, s=sequence: fail(engine, s, e)):
            try:
                found = replay(rows, tokens, request.params.prompt_logprobs or 0)
            except ValueError as error:  # the logits of this prompt are unusable: nobody else's business
                engine.counters.bad_rows["prompt"] += 1
                raise RowError(f"prompt_logprobs: {error}") from error
            engine.send(sequence, PromptLogprobs(request.id, request.epoch, part.start, found))
            sequence.scored = end


def lose(engine: Engine, sequences: Iterable[Sequence], error: BaseException) -> None:
    """The step failed: whoever was in it fails, workers that waited for it too; everybody else goes on."""
    reason = EngineError(f"the step failed: {type(error).__name__}: {error}")
    for sequence in sequences:
        if sequence.leads:
            fail(engine, sequence, reason)
