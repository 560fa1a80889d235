"""A submitted message → a Request with its sequences, the checks on their text, and the compilations that must end
first."""

from __future__ import annotations

from collections import abc
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial

from tailrace.base.fair_threads import FairThreads
from tailrace.drafting.prediction import Prediction, PredictionReader
from tailrace.engine.checks.banned_strings import BannedStringCheck, Bans
from tailrace.engine.checks.enders import Enders
from tailrace.engine.checks.repetition import RepetitionCheck
from tailrace.engine.checks.stop_strings import StopStringCheck
from tailrace.engine.checks.structured_output import StructuredOutput
from tailrace.engine.checks.thinking_budget import ThinkingBudgetCheck
from tailrace.engine.isolation import Isolated
from tailrace.engine.sequence import Phase, Request, Sequence, StopCheck
from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.engine.validation import negative_prompt
from tailrace.engine.wanted_rows import MAX_REPLAYED, MAX_SCORED, WantedRows
from tailrace.errors import ParameterError, TailraceError
from tailrace.grammar.service import Grammars
from tailrace.params import STATEFUL, SamplingParams
from tailrace.request.engine_fields import MAX_SEQUENCES
from tailrace.sampling import request_key
from tailrace.text.detokenize import LOOK_BACK, find_incomplete_bytes
from tailrace.wire.messages import Replay, Submit


def add_sequences(request: Request, message: Submit, token_bytes: TokenBytes, host_s: float) -> None:
    """Give the request its sequences: the first waits, the others are its forks. host_s: expected cost of a sample."""
    if message.replay is not None:
        add_replay(request, message, message.replay, token_bytes)
        return
    prediction = Prediction(message.params.prediction) if message.params.prediction else None
    for index in range(message.params.n):
        key = request_key(message.params.seed, index)
        phase = Phase.FORK if index else Phase.WAITING
        sequence = Sequence(request, index, key, len(message.prompt), list(message.prompt), phase, host_s=host_s)
        if message.params.guided:
            other = negative_prompt(message)
            sequence.unconditional = Sequence(request, index, key, len(other), other, Phase.UNCONDITIONAL)
        sequence.prediction = prediction and PredictionReader(prediction)
        if index == 0 and message.params.scores_prompt:
            sequence.wanted = WantedRows(message.params.scored_places(sequence.num_prompt), MAX_SCORED)
        add_checks(sequence, token_bytes)
        request.sequences.append(sequence)


def add_replay(request: Request, message: Submit, replay: Replay, token_bytes: TokenBytes) -> None:
    """Give the request its one sequence, which computes prompt and output as a prompt, and the walker along them."""
    seed, key = message.params.seed, replay.key
    if key is None:
        key = request_key(seed, replay.index)
    elif seed is not None and key not in (request_key(seed, index) for index in range(MAX_SEQUENCES)):
        raise ParameterError(f"key must be one that seed {seed} makes, or left out", "key")
    places = looked_at(message.params, replay.positions)
    said = replay.output[: places[-1]]

    def make_sequence(prompt: list[int], phase: Phase) -> Sequence:
        tokens = [*prompt, *said]
        wanted = WantedRows([len(prompt) + place for place in places], MAX_REPLAYED)
        return Sequence(request, 0, key, len(tokens), tokens, phase, wanted=wanted)

    sequence = make_sequence(message.prompt, Phase.WAITING)
    sequence.walker = Sequence(request, 0, key, len(message.prompt), list(message.prompt), Phase.RUNNING)
    if message.params.guided:
        sequence.unconditional = make_sequence(negative_prompt(message), Phase.UNCONDITIONAL)
    add_checks(sequence.walker, token_bytes)
    request.sequences.append(sequence)


def looked_at(params: SamplingParams, positions: abc.Sequence[int]) -> abc.Sequence[int]:
    """Return the places of an output whose logits are needed to explain these positions.

    All places before are needed if a state follows the drawn tokens, or if a grammar may close the text.
    """
    closes = params.grammar is not None and params.grammar.close_in_time
    learns = not all(params.neutral(name) for name in STATEFUL)
    return range(positions[-1] + 1) if closes or learns else positions


def add_checks(sequence: Sequence, token_bytes: TokenBytes) -> None:
    """Add the thinking budget, and the checks that may end the sequence."""
    params = sequence.request.params
    if params.thinking is not None and token_bytes.token_bytes:
        sequence.thinking = ThinkingBudgetCheck(params.thinking, TokenText(token_bytes))
        if not params.forced_token_ids:
            sequence.sequence_state.force(0, sequence.thinking.begin())
    stop_checks: list[StopCheck] = []
    if (params.stop or params.stop_regex) and token_bytes.reader is not None:
        stop_checks.append(
            StopStringCheck(params, token_bytes.reader(params.hidden(token_bytes.special), sequence.tokens))
        )
    if params.repetition_detection is not None:
        stop_checks.append(RepetitionCheck(params.repetition_detection, params.min_tokens, sequence.thinking))
    sequence.stop_checks = tuple(stop_checks)


def attach_constraints(request: Request, token_bytes: TokenBytes) -> None:
    """Give the sequences their compiled grammar and bans. Raise the error of a compilation that failed."""
    compiling, banning = request.compiling, request.banning
    request.compiling = request.banning = None
    compiled, bans = compiling and compiling.result(), banning and banning.result()
    enders = Enders.of(request.params, request.eos_token_ids, token_bytes.special)
    if compiled is not None and request.params.grammar is not None and request.params.forced_token_ids:
        constraint = StructuredOutput(request.params.grammar, compiled, token_bytes, enders)
        check_forced(constraint, request.params.forced_token_ids)
    for sequence in request.sequences:
        if compiled is not None:
            assert request.params.grammar is not None
            said = sequence if sequence.walker is None else sequence.walker
            said.constraint = StructuredOutput(request.params.grammar, compiled, token_bytes, enders)
        if bans is not None:
            begun = find_incomplete_bytes(bans.bytes_of(token) for token in reversed(sequence.tokens[-LOOK_BACK:]))
            sequence.bans = BannedStringCheck(bans, sequence.sequence_state.banned, begun)
            sequence.sequence_state.mask = bans.mask


def check_forced(constraint: StructuredOutput, forced: tuple[int, ...]) -> None:
    """Raise ParameterError if the output can't begin with these tokens: they break the grammar, or end the output too
    early.

    The constraint is consumed.
    """
    try:
        for index, token in enumerate(forced):
            if not constraint.ends(token, index):
                constraint.push(token)
            elif index < len(forced) - 1:
                raise ValueError("they go on where the output has ended")
    except ValueError as error:
        raise ParameterError("forced_token_ids: the grammar does not allow these tokens", "forced_token_ids") from error


class Compilations:
    """Requests whose grammar or bans are being compiled. They wait with the others, but can't be admitted yet."""

    def __init__(self, vocab_size: int, grammars: Grammars | None) -> None:
        self._vocab_size, self._grammars = vocab_size, grammars
        self._thread = FairThreads(1, "bans")
        self.requests: list[Request] = []

    def begin(self, request: Request, token_bytes: TokenBytes) -> None:
        """Start to compile the request's grammar and bans on other threads and processes."""
        params, owner = request.params, request.owner
        if params.grammar is not None and self._grammars is not None:
            request.compiling = self._grammars.compile(params.grammar, owner.user, owner.cache_salt, owner.weight)
        if params.bans:
            work = partial(Bans.of, params, token_bytes, self._vocab_size, request.eos_token_ids)
            request.banning = self._thread.submit(owner.user, work, weight=owner.weight)
        if request.compilations:
            self.requests.append(request)

    def finish(self, token_bytes: TokenBytes, timeout_s: float) -> list[tuple[Request, TailraceError]]:
        """Release the requests whose compilations are done. Return those whose grammar or bans are refused.

        Wait at most `timeout_s` for the first one.
        """
        if timeout_s:
            wait([future for request in self.requests for future in request.compilations], timeout_s, FIRST_COMPLETED)
        before, self.requests = self.requests, []
        refused: list[tuple[Request, TailraceError]] = []
        for request in before:
            if not (futures := request.compilations):  # it has ended
                continue
            if not all(future.done() for future in futures):
                self.requests.append(request)
                continue
            with Isolated("grammar", request.id) as attempt:
                attach_constraints(request, token_bytes)
            if attempt.error is not None:
                refused.append((request, attempt.error))
        return refused

    def close(self) -> None:
        """End all compilations, for good."""
        self._thread.cancel_waiting()
        if self._grammars is not None:
            self._grammars.close()
