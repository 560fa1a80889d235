"""The step, on one screen: plan → draft (none yet) → forward → sample → commit → outputs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tailrace.engine.banned import MAX_REWINDS
from tailrace.engine.batch import Assembled, Scored, assemble
from tailrace.engine.request import Sequence, State
from tailrace.engine.schedule import Plan, schedule
from tailrace.errors import EngineError, RowError
from tailrace.kernels.status import MESSAGES, NAMES, OK
from tailrace.sampling import Sampled
from tailrace.sampling.replay import replay
from tailrace.sampling.report import Logprobs
from tailrace.wire.messages import PromptLogprobs, TokenLogprobs, Tokens

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

log = logging.getLogger(__name__)

Drawn = tuple[int, TokenLogprobs | None]


def step(engine: Engine) -> None:
    """Compute and draw once; the engine's outbox holds what came of it."""
    timed = engine.counters.timed
    with timed("plan"):
        plan = schedule(engine.running, engine.waiting, engine.cache, engine.limits.scheduler, len(engine.free_slots))
        copies = apply(engine, plan)
        if not plan.work:
            return
        assembled = assemble(plan.work, engine.tables, engine.cache.block_size)
    engine.counters.steps += 1
    try:
        with timed("forward"):
            if copies:
                engine.runner.copy_blocks(copies)
            logits = engine.runner.forward(assembled.batch)
        with timed("sample"):
            sampled = engine.sampler(logits, assembled.rows)
            score(engine, assembled.scored, logits)
    except Exception as error:  # a model or kernel that fails must not take the engine down with it
        log.exception("step %d failed", engine.counters.steps)
        lose(engine, plan, error)
        return
    with timed("commit"):
        commit(engine, plan, assembled, sampled)


def apply(engine: Engine, plan: Plan) -> list[tuple[int, int]]:
    """Make the plan true: preempt, admit, reserve. Returns the block copies to make before the forward pass."""
    for sequence in plan.preempt:
        engine.preempt(sequence)
    for sequence, cached in plan.admit:  # all cached blocks are taken before any fresh one can displace them
        engine.admit(sequence, cached)
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
        if part.count == 0:
            continue
        rows, tokens = logits[part.row : part.row + part.count], sequence.tokens[part.start : end]
        try:
            found = replay(rows, tokens, request.params.prompt_logprobs or 0)
        except ValueError as error:  # the logits of this prompt are unusable: nobody else's business
            engine.counters.bad_rows["prompt"] += 1
            for member in (*sequence.siblings, sequence):
                engine.fail(member, RowError(f"prompt_logprobs: {error}"))
            continue
        entries = [TokenLogprobs(*entry) for entry in found]
        engine.send(sequence, PromptLogprobs(request.id, request.epoch, part.start, entries))
        sequence.scored = end


def lose(engine: Engine, plan: Plan, error: Exception) -> None:
    """The step failed: whoever was in it fails, siblings that waited for it too; everybody else goes on."""
    reason = EngineError(f"the step failed: {type(error).__name__}: {error}")
    for sequence, _ in plan.work:
        for member in (*sequence.siblings, sequence):
            engine.fail(member, reason)


def commit(engine: Engine, plan: Plan, assembled: Assembled, sampled: Sampled) -> None:
    """What was computed counts; what was drawn becomes history and messages."""
    for sequence, tokens in plan.work:
        if sequence.state is not State.RUNNING:  # its prompt could not be scored
            continue
        sequence.computed += tokens
        engine.cache.commit(sequence)
        if sequence.remaining == 0:
            engine.fork(sequence)
    ids, status = sampled.token_ids[:, 0], sampled.status
    for sequence, token, code, logprobs in zip(
        assembled.drawing, ids.tolist(), status.tolist(), sampled.logprobs, strict=True
    ):
        if sequence.state is not State.RUNNING:
            continue
        if code != OK:
            engine.counters.bad_rows[NAMES[code]] += 1
            engine.fail(sequence, RowError(f"{MESSAGES[code]} at position {len(sequence.tokens)}"))
            continue
        try:
            engine.slots.commit([sequence.slot], [[token]])
        except Exception as error:  # one request's methods must not take the others down
            log.exception("request %s could not be committed", sequence.request.id)
            engine.fail(sequence, EngineError(f"the token could not be committed: {type(error).__name__}: {error}"))
            continue
        emit(engine, sequence, token, logprobs)


def emit(engine: Engine, sequence: Sequence, token: int, logprobs: list[Logprobs] | None) -> None:
    """One drawn token: append, send, and end the sequence if the token, its text or its length says so.

    EOS is looked at first, then the stop ids, then stop strings and patterns, then loops, then the length; where several apply, the
    first gives the reason.
    """
    assert sequence.state is State.RUNNING
    request, params = sequence.request, sequence.request.params
    sequence.tokens.append(token)
    engine.counters.generated_tokens += 1
    entry = None
    if logprobs:
        e = logprobs[0]
        entry = TokenLogprobs(e.logprob, e.rank, e.top_ids, e.top_logprobs, e.entropy, e.varentropy)
    ends = (token in engine.eos and not params.ignore_eos) or token in params.stop_token_ids
    stops = ends and sequence.num_output > params.min_tokens
    full = len(sequence.tokens) >= request.max_len
    released: list[Drawn] | None = [(token, entry)]
    if sequence.watch is not None and (released := watch(engine, sequence, token, entry, stops or full)) is None:
        return
    if released:
        send(engine, sequence, released)
    if stops:
        engine.finish(sequence, "stop", token)
    elif ender := next((e for e in sequence.enders if any(e.push(id) for id, _ in released)), None):
        engine.finish(sequence, "stop", cause=ender.stop_reason)
    elif full:
        engine.finish(sequence, "length")
    elif sequence.thinking is not None and (forced := sequence.thinking.push(token)):
        engine.slots.force(sequence.slot, forced)


def watch(
    engine: Engine, sequence: Sequence, token: int, entry: TokenLogprobs | None, last: bool
) -> list[Drawn] | None:
    """What can't become a banned string any more. None if one is complete: the sequence has backed up, or given up."""
    text = sequence.watch
    assert text is not None
    if (position := text.push(token)) is not None:
        if text.rewinds >= MAX_REWINDS:
            engine.fail(sequence, RowError(f"banned_strings: the model wants nothing else after {MAX_REWINDS} rewinds"))
        else:
            engine.rewind(sequence, position)
        return None
    text.held.append((token, entry))
    return text.release(everything=last)


def send(engine: Engine, sequence: Sequence, out: list[Drawn]) -> None:
    """Tokens go out; the first ones say how much of the prompt was cached."""
    request = sequence.request
    entries = [entry for _, entry in out if entry is not None] or None
    first = (0, 0.0) if sequence.told else (sequence.cached, request.queued_s or 0.0)
    sequence.told = True
    message = Tokens(request.id, request.epoch, sequence.index, [token for token, _ in out], entries, *first)
    engine.send(sequence, message)
