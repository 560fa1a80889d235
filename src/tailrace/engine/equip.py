"""What a sequence is given to look at its own tokens: at once, and when what had to be compiled is ready."""

from __future__ import annotations

from tailrace.engine.checks.banned_strings import BannedStringCheck
from tailrace.engine.checks.repetition import RepetitionCheck
from tailrace.engine.checks.stop_strings import StopStringCheck
from tailrace.engine.checks.structured_output import StructuredOutput
from tailrace.engine.checks.thinking_budget import ThinkingBudgetCheck
from tailrace.engine.sequence import Request, Sequence, StopCheck
from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.errors import ParameterError
from tailrace.text.detokenize import LOOK_BACK, unfinished


def watch(sequence: Sequence, token_bytes: TokenBytes) -> None:
    """Thoughts that may not last, and what ends it."""
    params = sequence.request.params
    if params.thinking is not None:
        sequence.thinking = ThinkingBudgetCheck(params.thinking, TokenText(token_bytes))
        sequence.sequence_state.force(0, sequence.thinking.begin())
    stop_checks: list[StopCheck] = []
    if (params.stop or params.stop_regex) and token_bytes.reader is not None:
        stop_checks.append(
            StopStringCheck(params, token_bytes.reader(params.hidden(token_bytes.special), sequence.tokens))
        )
    if params.repetition_detection is not None:
        stop_checks.append(RepetitionCheck(params.repetition_detection, params.min_tokens))
    sequence.stop_checks = tuple(stop_checks)


def constrain(request: Request, token_bytes: TokenBytes) -> None:
    """What it must and what it may not say: its grammar and its bans are ready. Raises what their compilation did."""
    compiling, banning = request.compiling, request.banning
    request.compiling = request.banning = None
    compiled, bans = compiling and compiling.result(), banning and banning.result()
    for sequence in request.sequences:
        if compiled is not None:
            assert request.params.grammar is not None
            sequence.constraint = StructuredOutput(request.params.grammar, compiled, token_bytes)
            check_forced(sequence.constraint, request.params.forced_token_ids)
        if bans is not None:
            begun = unfinished(bans.bytes_of(token) for token in reversed(sequence.tokens[-LOOK_BACK:]))
            sequence.watch = BannedStringCheck(bans, sequence.sequence_state.banned, begun)
            sequence.sequence_state.mask = bans.mask


def check_forced(constraint: StructuredOutput, forced: tuple[int, ...]) -> None:
    """Raise ParameterError if the output can't begin with these tokens, or if they would end it before the grammar does. Where the grammar
    begins later, behind what the model thinks, that is seen when they are said."""
    if forced and constraint.bound and constraint.opening is None and constraint.allows(forced) < len(forced):
        raise ParameterError("forced_token_ids: the grammar does not allow these tokens", "forced_token_ids")
