"""Does the paged model compute what transformers' does? Asked at load, with two short sequences.

Decision 0045 says why these comparisons and not others. Knows nothing of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from tailrace.errors import ModelLoadError

SHORT = 7  # windows and chunks during the trial
WINDOWS = ("sliding_window", "sliding_window_size", "window_size", "local_window", "attention_chunk_size")
FLOORS = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}  # relative errors that are never refused
ROUNDING = 4.0  # how much more than rounding inside attention changes


class Checked(Protocol):
    """A runner of a transformers model, as it is checked."""

    model: Any

    def probe(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [T, V] of a sequence [T] in whose dense pass every layer notes and compares; see runners/probe.py."""
        ...

    def dense(self, ids: torch.Tensor, first: int | None = None) -> torch.Tensor:
        """Logits of a sequence without our cache, at positions from `first` on; None: at those that the model counts
        by itself."""
        ...

    def attending(self, function: str) -> AbstractContextManager[None]:
        """Inside this context the model attends by another function."""
        ...


def reproduce(runner: Checked, ids: torch.Tensor, far: int, served: Callable[[], list[torch.Tensor]]) -> None:
    """Let every layer note what it asks of attention, and compare logits while windows and chunks are short.

    Args:
        ids: int64 [2, T], two sequences, the second at positions from `far` on.
        served: the logits of load_checks.trial_steps through the paged cache.

    Raises:
        ModelLoadError: they differ by more than the model's own rounding, or a layer asks for what can't be done.
    """
    model = runner.model
    with short_windows(model):
        exact = runner.probe(ids[0])
        first, second, third = served()
        with runner.attending("eager"):
            near, beyond = runner.dense(ids[0]), runner.dense(ids[1], far)
    chunk = len(second)
    pieces = [
        (first[: len(near)], near),
        (first[len(near) :], beyond[:-chunk]),
        (second, beyond[-chunk:]),
        (third, torch.stack([beyond[-1], near[-1]])),
    ]
    error = max(spread(ours, theirs) for ours, theirs in pieces)
    allowed = max(FLOORS[model.dtype], ROUNDING * spread(exact, near))
    if not error <= allowed:
        name = type(model).__name__
        raise ModelLoadError(
            f"{name}: paged attention does not reproduce the model (error {error:.1e}, {allowed:.1e} allowed)"
        )
    runner.probe(ids[0])  # now with the windows that will be served


@contextmanager
def short_windows(model: Any) -> Iterator[None]:
    """Inside this context every window and chunk of the model is SHORT, in its configs and its modules, so that a trial
    crosses it."""
    holders = [model.config, model.config.get_text_config(), *model.modules()]
    kept = [
        (holder, name, value)
        for holder in {id(holder): holder for holder in holders}.values()
        for name in WINDOWS
        if isinstance(value := holder.__dict__.get(name), int) and not isinstance(value, bool) and value > SHORT
    ]
    for holder, name, _ in kept:
        setattr(holder, name, SHORT)
    try:
        yield
    finally:
        for holder, name, value in kept:
            setattr(holder, name, value)


def spread(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The median over positions of the relative error of logits [T, V]. In models of experts, rounding may send single
    positions to other experts; a wrong formula changes most positions."""
    error = (got.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    return error.nan_to_num(float("inf")).median().item()
