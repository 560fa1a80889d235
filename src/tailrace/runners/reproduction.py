"""Checks at load that the paged model computes the same logits as transformers' model, with two short sequences.

Decision 0045 gives the reasons for the choice of comparisons. Knows nothing of checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tailrace.errors import ModelLoadError
from tailrace.runners import probe
from tailrace.runners.attention import NAME
from tailrace.runners.load_checks import check_logits
from tailrace.runners.paged_model import PagedModel
from tailrace.runners.quantized import rounds_activations
from tailrace.runners.trials import TRIAL_TOKENS, trial_steps

TRIALS = 3  # prompts of which one must be reproduced, where numbers are rounded
SHORT = 7  # windows and chunks during the trial
WINDOWS = ("sliding_window", "sliding_window_size", "window_size", "local_window", "attention_chunk_size")
FLOORS = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}  # relative errors that are never refused
WITHOUT_INTERFACE = "does not go through transformers' attention interface, so its attention can't use the paged cache"
ROUNDING = 4.0  # how much more than rounding inside attention and scans changes


class NotReproducedError(ModelLoadError):
    """Logits differ by more than the model's own rounding."""


def check_reproduced(paged: PagedModel) -> None:
    """Record the attention of every layer, and compare logits.

    Rounding may send a token to other experts, and then everything after the token may differ. So below float32 further
    prompts are tried. A wrong formula fails with every prompt.

    Raises:
        NotReproducedError: the logits differ by more than the model's own rounding.
        ModelLoadError: a layer needs something that is not supported.
    """
    last = 0 if paged.dtype == torch.float32 else TRIALS - 1
    for number in range(last + 1):
        try:
            check_prompt(paged, number)
            break
        except NotReproducedError:
            if number == last:
                raise
    paged.layers.own_keys.clear()


@torch.inference_mode()
def check_prompt(paged: PagedModel, number: int) -> None:
    """Check one prompt, with short windows and chunks."""
    model = paged.model
    # an indexer may count blocks from position 0 on, so its sequences begin there
    far = 0 if paged.indexers else max(0, paged.max_model_len - TRIAL_TOKENS)
    ids, batches = trial_steps(paged.vocab_size, paged.block_size, far, number)
    ids = ids.to(paged.device)
    with short_windows(model):
        exact = probe_layers(paged, ids[0])
        with paged.trial_memory(sequences=2):
            first, second, third = (paged.logits(batch) for batch in batches)
        check_logits(torch.cat([first, second, third]))
        with attending(model, "eager"):
            near, beyond = dense(paged, ids[0]), dense(paged, ids[1], far)
    chunk = len(second)
    pieces = [
        (first[: len(near)], near),
        (first[len(near) :], beyond[:-chunk]),
        (second, beyond[-chunk:]),
        (third, torch.stack([beyond[-1], near[-1]])),
    ]
    error = max(spread(ours, theirs) for ours, theirs in pieces)
    floor = FLOORS[torch.bfloat16 if rounds_activations(model) else paged.dtype]
    allowed = max(floor, ROUNDING * spread(exact, near))
    if not error <= allowed:
        raise NotReproducedError(
            f"{type(model).__name__}: paged attention does not reproduce the model (error {error:.1e}, {allowed:.1e} "
            f"allowed){cause(paged, ids[0], spread(*pieces[0]) <= allowed, allowed)}"
        )
    probe_layers(paged, ids[0])  # now with the windows that will be served


def cause(paged: PagedModel, ids: torch.Tensor, first: bool, allowed: float) -> str:
    """Return why the model is not reproduced, as the rest of a sentence; "" if the cause is unknown.

    first: the batch's first sequence, which begins at position 0, is reproduced.
    """
    if not paged.takes_positions:
        return ": it takes no positions and counts tokens by itself, so sequences can't stand side by side"
    if first:
        return ": it keeps more from token to token than keys and values, in a way that is not known"
    with attending(paged.model, "eager"):
        if spread(dense(paged, ids, 0), dense(paged, ids)) > allowed:
            return ": its first position is not 0 (RoBERTa's models count from their padding id on)"
    return ""


def probe_layers(paged: PagedModel, ids: torch.Tensor) -> torch.Tensor:
    """Logits of a dense pass in which every layer notes and compares, and attends and scans in float32; see
    runners/probe.py."""
    model, attention, states = paged.model, paged.attention, paged.states
    for layer in attention:
        layer.calls = 0
    name = type(model).__name__
    with attending(model, probe.NAME):
        if model.config.get_text_config()._attn_implementation != probe.NAME:
            raise ModelLoadError(f"{name} {WITHOUT_INTERFACE}")
        states.exact = True
        try:
            logits = dense(paged, ids)
        finally:
            states.exact = False
    if attention and not any(layer.calls for layer in attention):
        raise ModelLoadError(f"{name} {WITHOUT_INTERFACE}")
    if missed := [layer.index for layer in attention if layer.calls != 1]:
        raise ModelLoadError(f"{name}: layers {missed} do not call attention once per pass; it can't be served")
    return logits


def dense(paged: PagedModel, ids: torch.Tensor, first: int | None = None) -> torch.Tensor:
    """Logits [T, V] of one sequence [T] without our cache, at positions from `first` on; None: at those that the model
    counts by itself."""
    options = {}
    if paged.picks_logits:  # as in a step: a model may drop tokens that a number would not keep (Gemma 4)
        options["logits_to_keep"] = torch.arange(len(ids), device=ids.device)
    if first is not None and paged.takes_positions:
        options["position_ids"] = torch.arange(first, first + len(ids), device=ids.device)[None]
    return paged.model(input_ids=ids[None], use_cache=False, **options).logits[0]


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
