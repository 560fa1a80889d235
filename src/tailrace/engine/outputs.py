"""What was computed counts; what was drawn becomes history and messages, token by token, until something ends or turns the sequence: what
was drawn after that never was."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from tailrace.engine.checks.banned_strings import GRACE
from tailrace.engine.checks.structured_output import RESTS, StructuredOutput
from tailrace.engine.draws import NOTHING, Guess, Guesses, SitsOutError
from tailrace.engine.isolation import alone
from tailrace.engine.scheduler import Work
from tailrace.engine.sequence import Sequence, State
from tailrace.errors import NothingLeftError, RowError, TailraceError
from tailrace.grammar.bitmasks import in_time
from tailrace.kernels.status import EMPTY, MESSAGES, NAMES, OK
from tailrace.logprobs import TokenLogprobs
from tailrace.sampling import Sampled
from tailrace.wire.messages import FinishReason, Tokens

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

SEARCH_S = 0.01  # of processor time for searches of one call for ways out, in a step; those that are not over go on in the next one
Drawn = tuple[int, TokenLogprobs | None]


@dataclass(frozen=True, slots=True)
class Said:
    """What a sequence has drawn: tokens that verification let stand, the first `stood` of them guesses. status: kernels/status.py. error:
    its grammar could not be matched, and what was drawn does not count."""

    sequence: Sequence
    guess: Guess
    tokens: list[int]
    stood: int
    status: int
    logprobs: list[TokenLogprobs] | None
    error: Exception | None


@dataclass(slots=True)
class Spent:
    """Processor time of a step's commits: of each call's, and of its last one; of searches for ways out."""

    taken_s: defaultdict[tuple[bytes, str], float] = field(default_factory=lambda: defaultdict(float))
    last_s: dict[tuple[bytes, str], float] = field(default_factory=dict)
    searched_s: defaultdict[tuple[bytes, str], float] = field(default_factory=lambda: defaultdict(float))


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
    """What was computed counts: it may be reused, and workers that waited for it run."""
    for sequence, tokens in work:
        if sequence.slot >= 0:  # else it has failed, or the one whose companion it is: its prompt could not be scored
            sequence.computed += tokens
            engine.cache.commit(sequence)
    for sequence, _ in work:
        if sequence.state is State.RUNNING and not any(member.remaining for member in sequence.members):
            engine.fork(sequence)


def collect(
    engine: Engine,
    guesses: Guesses,
    sampled: list[tuple[list[Sequence], Sampled]],
    errors: dict[int, Exception],
) -> list[Said]:
    """What a step has drawn; what stood of its guesses is learned from. errors: see Said, by slot."""
    engine.spent = Spent()
    found: list[Said] = []
    for sequences, drawn in sampled:
        counts, statuses = drawn.num_tokens.tolist(), drawn.status.tolist()
        rows = drawn.token_ids.tolist()
        for sequence, count, status, row, logprobs in zip(
            sequences, counts, statuses, rows, drawn.logprobs, strict=True
        ):
            if sequence.state is not State.RUNNING:
                continue
            error, guess, stood = errors.get(sequence.slot), guesses.get(sequence.slot, NOTHING), 0
            if guess.tokens and status == OK and error is None:
                stood = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(row, guess.tokens, strict=False)))
                engine.speculator.learn(engine, sequence, guess, stood)
            found.append(Said(sequence, guess, row[:count], stood, status, logprobs, error))
    return found


def commit(engine: Engine, said: Iterable[Said]) -> None:
    """What was drawn counts."""
    spent, budget_s = engine.spent, engine.limits.scheduler.host_ms / 1e3
    for one in said:
        sequence, guess, name = one.sequence, one.guess, one.sequence.request.shared_name
        if sequence.state is not State.RUNNING:
            continue
        if one.error is not None:  # first: without a mask the row may have no status at all
            if isinstance(one.error, SitsOutError):
                engine.cut_back(sequence)
                continue
            error = one.error if isinstance(one.error, TailraceError) else RowError(f"grammar: {one.error}")
            engine.fail(sequence, error)
            continue
        if one.status != OK:
            undrawn(engine, sequence, one.status)
            continue
        if (
            spent.taken_s[name] > budget_s
        ):  # they take turns from the next step on, and say then what they were to say now
            sequence.host_s = max(sequence.host_s, spent.last_s[name])
            engine.cut_back(sequence)
            continue
        drawn_s, begun_s = engine.slots[sequence.slot].took_s, time.thread_time()
        tokens = one.tokens if sequence.constraint is None else one.tokens[: sequence.constraint.known]
        with engine.growth.of(sequence.request):
            accept(engine, sequence, tokens, one.logprobs, (0 if guess.certain else len(guess.tokens), one.stood))
        spent.last_s[name] = time.thread_time() - begun_s
        spent.taken_s[name] += spent.last_s[name]
        sequence.host_s = spent.last_s[name] + drawn_s
        if sequence.constraint is not None:
            sequence.host_s += sequence.constraint.mask_s * guess.rows
        sequence.host_s = max(sequence.host_s, sequence.request.least_s * guess.rows)
        sequence.request.guess_costs(sequence.host_s)
        if sequence.state is State.RUNNING and (guess.tokens or sequence.remaining == 0):
            under_way = engine.flight is not None and engine.flight.stands(sequence)
            if not under_way:  # else what it holds beyond that is being written
                engine.cut_back(sequence)


def undrawn(engine: Engine, sequence: Sequence, status: int) -> None:
    """Nothing could be drawn. Where the request's own fields rule tokens out, that is what they ask for, and no fault of the model's."""
    if status == EMPTY and sequence.watch is not None:
        give_up(engine, sequence)
        return
    at = f"at position {len(sequence.tokens)}"
    excluding = sequence.request.params.excluding
    if status == EMPTY and excluding:
        engine.fail(sequence, NothingLeftError(f"{', '.join(excluding)}: no token is left {at}", excluding[0]))
        return
    engine.counters.bad_rows[NAMES[status]] += 1
    engine.fail(sequence, RowError(f"{MESSAGES[status]} {at}"))


def accept(
    engine: Engine,
    sequence: Sequence,
    tokens: list[int],
    logprobs: list[TokenLogprobs] | None,
    drafts: tuple[int, int] = (0, 0),
) -> None:
    """The tokens that verification let stand, in order: the first is new, each further one follows from a guess. drafts: how many there
    were, and how many stood; the client is told of those that became output."""
    out: list[Drawn] = []
    before = len(sequence.tokens)
    outcome = Outcome()
    for place, token in enumerate(tokens):
        outcome = Outcome()
        with alone("the token could not be committed", sequence.request.id, partial(setattr, outcome, "error")):
            entry = logprobs[place] if logprobs else None
            outcome = take(engine, sequence, token, entry, guessed=place > 0)
        out += outcome.out
        if outcome.over:
            break
    if drafts[0]:
        sequence.drafts += (drafts[0], min(drafts[1], max(0, len(sequence.tokens) - before)))
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
    if constraint is not None:
        begun_s, name = time.thread_time(), request.shared_name
        spent_s = engine.spent.searched_s[name]
        way_out = constraint.way_out(
            token, sequence.room, RESTS if spent_s > SEARCH_S else begun_s + SEARCH_S - spent_s
        )
        engine.spent.searched_s[name] += time.thread_time() - begun_s
        if constraint.searching:
            return Outcome(turned=True)  # the same token is drawn again, until it is known what it leads to
        if way_out == []:
            return Outcome([] if sequence.watch is None else sequence.watch.release(everything=True), reason="stop")
        if way_out is not None:
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
        outcome.turned = rule(engine, constraint, token)
    complete = constraint is not None and constraint.finished
    silent = stops and not params.include_stop_str_in_output
    if sequence.watch is not None and not watch(engine, sequence, outcome, silent, stops or full or complete):
        return outcome
    if stops:
        outcome.reason, outcome.stop_token_id = "stop", token
    elif ender := next((e for e in sequence.stop_checks if any(e.push(id) for id, _ in outcome.out)), None):
        outcome.reason, outcome.cause = "stop", ender.stop_reason
    elif complete:
        outcome.reason = "stop"
    elif full:
        outcome.reason = "length"
    elif sequence.thinking is not None and (forced := sequence.thinking.push(token)):
        engine.slots.force(sequence.slot, forced)
        outcome.turned = True
    return outcome


def rule(engine: Engine, constraint: StructuredOutput, token: int) -> bool:
    """Tell the grammar; True if it begins, or gives way, with this token.

    Raises:
        RowError: it does not allow the token, so the token was forced. GrammarLimitError: it takes too long, and would again.
    """
    begun_s = time.thread_time()
    try:
        turned = constraint.push(token)
    except ValueError as error:
        raise RowError(f"grammar: {error}") from error
    if engine.grammars is not None:
        in_time(begun_s + engine.grammars.step_s, engine.grammars.step_s)
    return turned


def watch(engine: Engine, sequence: Sequence, outcome: Outcome, silent: bool, last: bool) -> bool:
    """Leave in `out` what can't become anything banned any more. False if something is complete: the sequence has backed up, or ends
    because it has drawn too much in vain.

    Args:
        silent: the token leaves no text. last: it ends the sequence.
    """
    text = sequence.watch
    assert text is not None
    [drawn] = outcome.out
    outcome.out = []
    if (position := text.push(drawn[0], silent, last)) is None:
        text.held.append(drawn)
        outcome.out = text.release(everything=last)
        return True
    spent = text.taken_back + sequence.num_output - position
    if spent <= engine.limits.scheduler.redraws_per_token * (text.sent + GRACE):
        engine.rewind(sequence, position)
        outcome.turned = True
    else:
        text.back_to(position)
        outcome.out, outcome.reason, outcome.cause = text.rest(), "abort", text.field
    return False


def give_up(engine: Engine, sequence: Sequence) -> None:
    """Whatever might be said next is banned: the sequence ends with what it has said."""
    assert sequence.watch is not None
    if out := sequence.watch.rest():
        send(engine, sequence, out)
    engine.finish(sequence, "abort", cause=sequence.watch.field)


def send(engine: Engine, sequence: Sequence, out: list[Drawn]) -> None:
    """Tokens go out; the first ones say how much of the prompt was cached."""
    request = sequence.request
    entries = [entry for _, entry in out if entry is not None] or None
    first = (0, 0.0) if sequence.told else (sequence.cached, request.queued_s or 0.0)
    sequence.told = True
    drafts, sequence.drafts = sequence.drafts, []
    message = Tokens(request.id, request.epoch, sequence.index, [token for token, _ in out], entries, *first, drafts)
    engine.send(sequence, message)
