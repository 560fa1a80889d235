"""Why a sequence ends, and the message about it."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.engine.predicted import count_found
from tailrace.engine.sequence import Sequence
from tailrace.errors import TailraceError
from tailrace.wire.messages import Failed, Finished, FinishReason


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ends: a reason and its source, or an error."""

    reason: FinishReason | None = None
    stop_token_id: int | None = None
    cause: str | None = None
    error: TailraceError | None = None


def make_ending_message(sequence: Sequence, ending: Ending) -> Failed | Finished:
    """Return the client's message about an ending."""
    id, epoch, index = sequence.request.id, sequence.request.epoch, sequence.index
    if ending.error is not None:
        return make_failed_message(id, epoch, index, ending.error)
    assert ending.reason is not None
    found = count_found(sequence)
    return Finished(id, epoch, index, ending.reason, ending.stop_token_id, ending.cause, sequence.draft_counts, found)


def make_failed_message(id: str, epoch: int, index: int, error: TailraceError) -> Failed:
    """Return the message of an error."""
    return Failed(id, epoch, index, error.code, str(error), getattr(error, "param", None))
