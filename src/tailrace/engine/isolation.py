"""One request's work fails that request alone. What is done for many at once is done again one by one where it raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from tailrace.engine.draws import Draws, Guesses, Masks, draw
from tailrace.engine.sequence import LIVING, Sequence
from tailrace.errors import EngineError, TailraceError
from tailrace.sampling.sampler import Pending

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

log = logging.getLogger(__name__)

T = TypeVar("T")
Begun = list[tuple[list[Sequence], Pending]]


@contextmanager
def alone(what: str, id: str, fail: Callable[[TailraceError], object]) -> Iterator[None]:
    """Whatever is raised inside is the request's error, which `fail` is told: also a library's panic, which is no Exception. Interrupts
    go on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except TailraceError as error:
        fail(error)
    except BaseException as error:
        log.exception("request %s: %s", id, what)
        fail(EngineError(f"{what}: {type(error).__name__}: {error}"))


def tried(work: Callable[[], T], otherwise: T) -> T:
    """What `work` returns; where it raises, what is as good as nothing: the request is told by whoever comes to the same place for good."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return otherwise


def fail(engine: Engine, sequence: Sequence, error: TailraceError) -> None:
    """It, and those that wait for its prefill."""
    for member in (*sequence.workers, sequence):
        if member.state in LIVING:
            engine.fail(member, error)


def drawn_by(
    engine: Engine, group: list[Sequence], guesses: Guesses, first: dict[int, int], masks: Masks
) -> list[Draws]:
    """The draws of a group. Where that is impossible the group is taken apart, and those whose guesses are at fault do without them; they
    are taken out of `guesses`. A request whose draw can't be put together without any fails."""
    known = len(masks.jobs)
    try:
        return [draw(group, guesses, first, masks)]
    except Exception:
        log.exception("draws could not be put together; guesses that are at fault are dropped")
    del masks.jobs[known:]
    draws: list[Draws] = []
    for sequence in group:
        known = len(masks.jobs)
        try:
            draws.append(draw([sequence], guesses, first, masks))
            continue
        except Exception:
            del masks.jobs[known:]
            guesses.pop(sequence.slot, None)
        with alone("the draw could not be put together", sequence.request.id, lambda e, s=sequence: fail(engine, s, e)):
            draws.append(draw([sequence], guesses, first, masks))
            continue
        del masks.jobs[known:]
    return draws


def begin(engine: Engine, draws: list[Draws], logits: torch.Tensor) -> Begun:
    """Begin the draws. A request whose own can't be begun fails."""
    begun: Begun = []
    for part in draws:
        try:
            begun.append((part.sequences, engine.sampler.begin(logits, part.rows)))
        except Exception:
            if len(part.sequences) > 1:
                log.exception("the draws of %d sequences failed; each is tried alone", len(part.sequences))
            for place, sequence in enumerate(part.sequences):
                with alone(
                    "the token could not be drawn", sequence.request.id, lambda e, s=sequence: fail(engine, s, e)
                ):
                    begun.append(([sequence], engine.sampler.begin(logits, part.rows.of(place))))
    return begun
