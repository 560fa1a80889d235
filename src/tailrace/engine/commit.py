"""What was computed counts; what was drawn becomes history and messages, token by token, until something ends or turns the sequence: what
was drawn after that never was."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from tailrace.engine.banned import MAX_REWINDS
from tailrace.engine.constraint import Constraint
from tailrace.engine.draws import NOTHING, Guesses
from tailrace.engine.request import Sequence, State
from tailrace.engine.schedule import Work
from tailrace.errors import EngineError, RowError, TailraceError
from tailrace.kernels.status import MESSAGES, NAMES, OK
from tailrace.sampling import Sampled
from tailrace.sampling.report import Logprobs
from tailrace.wire.messages import FinishReason, TokenLogprobs, Tokens

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

log = logging.getLogger(__name__)

Drawn = tuple[int, TokenLogprobs | None]


@dataclass(slots=True)
class Outcome:
    """What a token has led to. out: what can be sent. turned: the tokens drawn after it were drawn in vain. reason: the sequence
    ends, why, and what said so; error: it fails."""

    out: list[Drawn] = field(default_factory=list)
    turned: bool = False
    reason: FinishReason | None = None
    stop_token_id: int | None = None
    cause: str | None = None
    error: TailraceError | None = None

    @property
    def over(self) -> bool:
        """Nothing more of this step counts."""
        return self.turned or self.reason is not None or self.error is not None


def settle(engine: Engine, work: Work) -> None:
    """What was computed counts: it may be reused, and siblings that waited for it run."""
    for sequence, tokens in work:
        if sequence.slot >= 0:  # else it has failed, or the one whose companion it is: its prompt could not be scored
            sequence.computed += tokens
            engine.cache.commit(sequence)
    for sequence, _ in work:
        if sequence.state is State.RUNNING and not any(member.remaining for member in sequence.members):
            engine.fork(sequence)


def commit(
    engine: Engine,
    guesses: Guesses,
    sampled: list[tuple[list[Sequence], Sampled]],
    errors: dict[int, Exception],
) -> None:
    """What was drawn counts. errors: of sequences whose grammar could not be matched, by slot: what was drawn for them does not count."""
    for sequences, drawn in sampled:
        counts, statuses = drawn.num_tokens.tolist(), drawn.status.tolist()
        rows = drawn.token_ids.tolist()
        for sequence, count, status, row, logprobs in zip(
            sequences, counts, statuses, rows, drawn.logprobs, strict=True
        ):
            if sequence.state is not State.RUNNING:
                continue
            if status != OK:
                engine.counters.bad_rows[NAMES[status]] += 1
                engine.fail(sequence, RowError(f"{MESSAGES[status]} at position {len(sequence.tokens)}"))
                continue
            if (error := errors.get(sequence.slot)) is not None:
                engine.fail(sequence, RowError(f"grammar: {error}"))
                continue
            guess = guesses.get(sequence.slot, NOTHING)
            if guess.tokens:
                stood = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(row, guess.tokens, strict=False)))
                engine.speculator.learn(engine, sequence, guess, stood)
            accept(engine, sequence, row[:count], logprobs)
            if sequence.state is State.RUNNING and (guess.tokens or sequence.remaining == 0):
                engine.cut_back(sequence)


def accept(engine: Engine, sequence: Sequence, tokens: list[int], logprobs: list[Logprobs] | None) -> None:
    """The tokens that verification let stand, in order: the first is new, each further one follows from a guess."""
    out: list[Drawn] = []
    outcome = Outcome()
    for place, token in enumerate(tokens):
        try:
            entry = described(logprobs[place]) if logprobs else None
            outcome = take(engine, sequence, token, entry, guessed=place > 0)
        except TailraceError as error:
            outcome = Outcome(error=error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            # one request's methods must not take the others down
            log.exception("request %s could not be committed", sequence.request.id)
            outcome = Outcome(error=EngineError(f"the token could not be committed: {type(error).__name__}: {error}"))
        out += outcome.out
        if outcome.over:
            break
    if out:
        send(engine, sequence, out)
    if outcome.error is not None:
        engine.fail(sequence, outcome.error)
    elif outcome.reason is not None:
        engine.finish(sequence, outcome.reason, outcome.stop_token_id, outcome.cause)


def take(engine: Engine, sequence: Sequence, token: int, entry: TokenLogprobs | None, guessed: bool) -> Outcome:
    """One token: it becomes history, and ends or turns the sequence if it, its text or its length says so.

    EOS is looked at first, then the stop ids, then stop strings and patterns, then loops, then the end of the grammar, then the
    length; where several apply, the first gives the reason.

    Args:
        guessed: the token before it was a guess, whose keys and values are in the cache.

    Raises:
        RowError: the grammar does not allow the token, which was forced.
    """
    assert sequence.state is State.RUNNING
    request, params, constraint = sequence.request, sequence.request.params, sequence.constraint
    if constraint is not None and (way_out := constraint.way_out(token, sequence.room)) is not None:
        if not way_out:
            return Outcome([] if sequence.watch is None else sequence.watch.release(everything=True), reason="stop")
        engine.slots.force(sequence.slot, way_out)
        return Outcome(turned=True)
    engine.slots.commit([sequence.slot], [[token]])
    for member in sequence.members:
        member.computed += guessed
        member.tokens.append(token)
    engine.counters.generated_tokens += 1
    ends = (token in engine.eos and not params.ignore_eos) or token in params.stop_token_ids
    stops = ends and sequence.num_output > params.min_tokens
    full = len(sequence.tokens) >= request.max_len
    outcome = Outcome([(token, entry)])
    if constraint is not None and not stops:
        outcome.turned = rule(constraint, token)
    complete = constraint is not None and constraint.finished
    if sequence.watch is not None and not watch(engine, sequence, outcome, stops or full or complete):
        return outcome
    if stops:
        outcome.reason, outcome.stop_token_id = "stop", token
    elif ender := next((e for e in sequence.enders if any(e.push(id) for id, _ in outcome.out)), None):
        outcome.reason, outcome.cause = "stop", ender.stop_reason
    elif complete:
        outcome.reason = "stop"
    elif full:
        outcome.reason = "length"
    elif sequence.thinking is not None and (forced := sequence.thinking.push(token)):
        engine.slots.force(sequence.slot, forced)
        outcome.turned = True
    return outcome


def rule(constraint: Constraint, token: int) -> bool:
    """Tell the grammar; True if it begins, or gives way, with this token.

    Raises:
        RowError: it does not allow the token, so the token was forced.
    """
    try:
        return constraint.push(token)
    except ValueError as error:
        raise RowError(f"grammar: {error}") from error


def watch(engine: Engine, sequence: Sequence, outcome: Outcome, last: bool) -> bool:
    """Leave in `out` what can't become a banned string any more. False if one is complete: the sequence has backed up, or gives up."""
    text = sequence.watch
    assert text is not None
    [drawn] = outcome.out
    outcome.out = []
    if (position := text.push(drawn[0])) is not None:
        if text.rewinds >= MAX_REWINDS:
            outcome.error = RowError(f"banned_strings: the model wants nothing else after {MAX_REWINDS} rewinds")
        else:
            engine.rewind(sequence, position)
            outcome.turned = True
        return False
    text.held.append(drawn)
    outcome.out = text.release(everything=last)
    return True


def described(entry: Logprobs) -> TokenLogprobs:
    """As it travels."""
    return TokenLogprobs(entry.logprob, entry.rank, entry.top_ids, entry.top_logprobs, entry.entropy, entry.varentropy)


def send(engine: Engine, sequence: Sequence, out: list[Drawn]) -> None:
    """Tokens go out; the first ones say how much of the prompt was cached."""
    request = sequence.request
    entries = [entry for _, entry in out if entry is not None] or None
    first = (0, 0.0) if sequence.told else (sequence.cached, request.queued_s or 0.0)
    sequence.told = True
    message = Tokens(request.id, request.epoch, sequence.index, [token for token, _ in out], entries, *first)
    engine.send(sequence, message)
