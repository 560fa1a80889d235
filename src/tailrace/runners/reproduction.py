"""Does the paged model compute what transformers' does? Asked at load, with two short sequences.

Decision 0045 says why these comparisons and not others. Knows nothing of checkpoints.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tailrace.errors import ModelLoadError
from tailrace.runners import probe
from tailrace.runners.attention import NAME, AttentionLayer
from tailrace.runners.quantized import rounds_activations
from tailrace.runners.states import RecurrentState

SHORT = 7  # windows and chunks during the trial
WINDOWS = ("sliding_window", "sliding_window_size", "window_size", "local_window", "attention_chunk_size")
FLOORS = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}  # relative errors that are never refused
WITHOUT_INTERFACE = "does not go through transformers' attention interface, so its attention can't use the paged cache"
ROUNDING = 4.0  # how much more than rounding inside attention and scans changes


class NotReproducedError(ModelLoadError):
    """Logits differ by more than the model's own rounding."""


class Layers(NamedTuple):
    """What of a model is ours: its attention, and the states of other layers."""

    attention: list[AttentionLayer]
    states: RecurrentState


def reproduce(
    model: Any, layers: Layers, ids: torch.Tensor, far: int, served: Callable[[], list[torch.Tensor]]
) -> None:
    """Let every layer note what it asks of attention, and compare logits while windows and chunks are short.

    Args:
        ids: int64 [2, T], two sequences, the second at positions from `far` on.
        served: the logits of load_checks.trial_steps through the paged cache.

    Raises:
        NotReproducedError: they differ by more than the model's own rounding.
        ModelLoadError: a layer asks for what can't be done.
    """
    with short_windows(model):
        exact = probed(model, layers, ids[0])
        first, second, third = served()
        with attending(model, "eager"):
            near, beyond = dense(model, ids[0]), dense(model, ids[1], far)
    chunk = len(second)
    pieces = [
        (first[: len(near)], near),
        (first[len(near) :], beyond[:-chunk]),
        (second, beyond[-chunk:]),
        (third, torch.stack([beyond[-1], near[-1]])),
    ]
    error = max(spread(ours, theirs) for ours, theirs in pieces)
    floor = FLOORS[torch.bfloat16 if rounds_activations(model) else model.dtype]
    allowed = max(floor, ROUNDING * spread(exact, near))
    if not error <= allowed:
        raise NotReproducedError(
            f"{type(model).__name__}: paged attention does not reproduce the model (error {error:.1e}, {allowed:.1e} "
            f"allowed){cause(model, ids[0], spread(*pieces[0]) <= allowed, allowed)}"
        )
    probed(model, layers, ids[0])  # now with the windows that will be served


def cause(model: Any, ids: torch.Tensor, first: bool, allowed: float) -> str:
    """Why the model is not reproduced, as the rest of a sentence; "" if that is not known. first: the sequence that
    stands at the beginning of the batch, from position 0 on, is reproduced."""
    if not takes_positions(model):
        return ": it takes no positions and counts tokens by itself, so sequences can't stand side by side"
    if first:
        return ": it keeps more from token to token than keys and values, in a way that is not known"
    with attending(model, "eager"):
        if spread(dense(model, ids, 0), dense(model, ids)) > allowed:
            return ": its first position is not 0 (RoBERTa's models count from their padding id on)"
    return ""


def probed(model: Any, layers: Layers, ids: torch.Tensor) -> torch.Tensor:
    """Logits of a dense pass in which every layer notes and compares, and attends and scans in float32; see
    runners/probe.py."""
    attention, states = layers
    for layer in attention:
        layer.calls = 0
    name = type(model).__name__
    with attending(model, probe.NAME):
        if model.config.get_text_config()._attn_implementation != probe.NAME:
            raise ModelLoadError(f"{name} {WITHOUT_INTERFACE}")
        states.exact = True
        try:
            logits = dense(model, ids)
        finally:
            states.exact = False
    if attention and not any(layer.calls for layer in attention):
        raise ModelLoadError(f"{name} {WITHOUT_INTERFACE}")
    if missed := [layer.index for layer in attention if layer.calls != 1]:
        raise ModelLoadError(f"{name}: layers {missed} do not call attention once per pass; it can't be served")
    return logits


def dense(model: Any, ids: torch.Tensor, first: int | None = None) -> torch.Tensor:
    """Logits [T, V] of one sequence [T] without our cache, at positions from `first` on; None: at those that the model
    counts by itself."""
    taken, options = inspect.signature(model.forward).parameters, {}
    if "logits_to_keep" in taken:  # as in a step: a model may drop tokens that a number would not keep (Gemma 4)
        options["logits_to_keep"] = torch.arange(len(ids), device=ids.device)
    if first is not None and takes_positions(model):
        options["position_ids"] = torch.arange(first, first + len(ids), device=ids.device)[None]
    return model(input_ids=ids[None], use_cache=False, **options).logits[0]


def takes_positions(model: Any) -> bool:
    """The model can be told the positions of tokens: by name, or, where it also sees or hears, by what it passes on."""
    taken = inspect.signature(model.forward).parameters
    composite = model.config.get_text_config() is not model.config
    return "position_ids" in taken or (composite and any(each.kind is each.VAR_KEYWORD for each in taken.values()))


@contextmanager
def attending(model: Any, function: str) -> Iterator[None]:
    """Inside this context the model attends by another function."""
    model.set_attn_implementation(function)
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)


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
