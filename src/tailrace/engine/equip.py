"""What a sequence is given to look at its own tokens: at once, and when what had to be compiled is ready."""

from __future__ import annotations

from tailrace.engine.banned import BannedText
from tailrace.engine.constraint import Constraint
from tailrace.engine.loops import LoopWatch
from tailrace.engine.request import Ender, Request, Sequence
from tailrace.engine.spelling import Spelling, TokenText
from tailrace.engine.stops import StopText
from tailrace.engine.thinking import ThinkingWatch
from tailrace.errors import ParameterError
from tailrace.text.detokenize import LOOK_BACK, unfinished


def watch(sequence: Sequence, spelling: Spelling) -> None:
    """Thoughts that may not last, and what ends it."""
    params = sequence.request.params
    if params.thinking is not None:
        sequence.thinking = ThinkingWatch(params.thinking, TokenText(spelling))
        sequence.carried.force(0, sequence.thinking.begin())
    enders: list[Ender] = []
    if (params.stop or params.stop_regex) and spelling.reader is not None:
        enders.append(StopText(params, spelling.reader(params.hidden(spelling.special), sequence.tokens)))
    if params.repetition_detection is not None:
        enders.append(LoopWatch(params.repetition_detection, params.min_tokens))
    sequence.enders = tuple(enders)


def constrain(request: Request, spelling: Spelling) -> None:
    """What it must and what it may not say: its grammar and its bans are ready. Raises what their compilation did."""
    compiling, banning = request.compiling, request.banning
    request.compiling = request.banning = None
    compiled, bans = compiling and compiling.result(), banning and banning.result()
    for sequence in request.sequences:
        if compiled is not None:
            assert request.params.grammar is not None
            sequence.constraint = Constraint(request.params.grammar, compiled, spelling)
            check_forced(sequence.constraint, request.params.forced_token_ids)
        if bans is not None:
            begun = unfinished(bans.bytes_of(token) for token in reversed(sequence.tokens[-LOOK_BACK:]))
            sequence.watch = BannedText(bans, sequence.carried.banned, begun)
            sequence.carried.mask = bans.mask


def check_forced(constraint: Constraint, forced: tuple[int, ...]) -> None:
    """Raise ParameterError if the output can't begin with these tokens, or if they would end it before the grammar does. Where the grammar
    begins later, behind what the model thinks, that is seen when they are said."""
    if forced and constraint.bound and constraint.opening is None and constraint.allows(forced) < len(forced):
        raise ParameterError("forced_token_ids: the grammar does not allow these tokens", "forced_token_ids")
