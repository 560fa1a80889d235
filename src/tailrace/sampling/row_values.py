"""Conversion of values for all rows or per row (numbers, lists, arrays or tensors) to Python numbers, with type
checks."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tailrace.errors import ParameterError
from tailrace.kernels.plain import make_plain
from tailrace.kernels.rows import tensor
from tailrace.request.fields import MAX_SEED, MIN_SEED
from tailrace.sampling.keys import request_key

PerRow = float | Sequence[float] | np.ndarray | torch.Tensor
WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
NUMBERS = WHOLE | {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def on_host(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without tensors of a GPU. One copy moves all such tensors, and the host waits once."""
    given = {
        name: make_plain(name, value) if isinstance(value, torch.Tensor) else value for name, value in given.items()
    }
    away = {
        name: value
        for name, value in given.items()
        if isinstance(value, torch.Tensor) and value.is_cuda and value.dtype != torch.bool
    }
    if not away:
        return dict(given)
    arrived = torch.cat([as_words(value) for value in away.values()]).cpu()
    here, at = dict(given), 0
    for name, value in away.items():
        words = arrived[at : at + value.numel()]
        here[name] = (words.view(torch.float64) if value.is_floating_point() else words).view(value.shape)
        at += value.numel()
    return here


def as_words(value: torch.Tensor) -> torch.Tensor:
    """Return int64 [n]: whole numbers as they are, others as the bits of doubles."""
    flat = value.reshape(-1)
    return flat.double().view(torch.int64) if value.is_floating_point() else flat.long()


def parse_values(name: str, given: Any, count: int, *, whole: bool) -> list[Any] | float:
    """Return the values of `count` rows, or one value for all rows. Ranges are not checked.

    Raises:
        ParameterError: the argument is neither a number nor `count` numbers; with `whole`: no integers.
    """
    kind = type(given)
    if kind is int or (kind is float and not whole):
        return given
    found: Any = None
    if isinstance(given, torch.Tensor):
        given = make_plain(name, given)
        if given.dtype in (WHOLE if whole else NUMBERS) and given.dim() <= 1:
            found = given.tolist()
    elif kind is list or kind is tuple:
        if set(map(type, given)) <= ({int} if whole else {int, float}):
            found = list(given)
        elif not any(isinstance(one, bool | np.bool_ | str) for one in given):
            found = of_array(given, whole)  # numbers of numpy or torch
    else:
        found = of_array(given, whole)
    if found is None or (isinstance(found, list) and len(found) != count):
        asked = "an integer" if whole else "a number"
        raise ParameterError(
            f"{name} must be {asked} or {count} of them, one per row, got {describe_given(given)}", name
        )
    return found


def of_array(given: Any, whole: bool) -> Any:
    """Return a number or a list of numbers from anything that numpy can read. Return None if numpy can't read it, or it
    holds no numbers."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array.tolist() if array.dtype.kind in ("iu" if whole else "iuf") and array.ndim <= 1 else None


def describe_given(given: Any) -> str:
    """Describe a value for an error message."""
    if isinstance(given, torch.Tensor | np.ndarray):
        return f"{given.dtype} {tuple(given.shape)}"
    return f"{len(given)}: {given!r:.60}" if isinstance(given, list | tuple) else f"{given!r:.60}"


def make_row_keys(seed: Any, count: int) -> np.ndarray:
    """Return the keys of the rows' noise, int64 [R]. A seed per row is the row's key. With a single seed, row r gets
    the key of sequence r. Without seeds all keys are fresh.

    Raises:
        ParameterError: seeds are no integers of 64 bits, or their number differs from the rows'.
    """
    if seed is None:
        return np.frombuffer(os.urandom(8 * count), dtype=np.int64)
    given = parse_values("seed", seed, count, whole=True)
    checked = given if isinstance(given, list) else [given]
    if checked and not (min(checked) >= MIN_SEED and max(checked) <= MAX_SEED):
        row = next(row for row, one in enumerate(checked) if not MIN_SEED <= one <= MAX_SEED)
        raise ParameterError(f"seed must be an integer of 64 bits, got {checked[row]} in row {row}", "seed")
    return np.array(given, dtype=np.int64) if isinstance(given, list) else derived_keys(int(given), count)


@lru_cache(maxsize=64)
def derived_keys(seed: int, count: int) -> np.ndarray:
    """Return int64 [R], `request_key` of a seed's sequences 0 … R − 1."""
    return np.array([request_key(seed, row) for row in range(count)], dtype=np.int64)


def parse_positions(position: Any, seeded: bool, count: int) -> torch.Tensor:
    """Return the positions, int64 [R].

    Raises:
        ParameterError: a seed comes without positions, so each call would use the same noise. Or a position is negative
            or too large.
    """
    if position is None:
        if seeded:
            raise ParameterError(
                "position must be given with seed: the same one again is the same noise again", "position"
            )
        return torch.zeros(count, dtype=torch.int64)
    given = parse_values("position", position, count, whole=True)
    numbers = given if isinstance(given, list) else [given] * count
    if numbers and not (min(numbers) >= 0 and max(numbers) <= MAX_SEED):
        row = next(row for row, one in enumerate(numbers) if not 0 <= one <= MAX_SEED)
        raise ParameterError(
            f"position must be an integer in [0, {MAX_SEED}], got {numbers[row]} in row {row}", "position"
        )
    return tensor(array("q", numbers))  # pyright: ignore[reportArgumentType]  # integers
