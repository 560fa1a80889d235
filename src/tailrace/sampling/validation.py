"""Checks of the library's arguments where they enter: ids, keys, and fields that the sampler does not act on."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import torch

from tailrace.errors import ParameterError
from tailrace.kernels.plain import make_plain
from tailrace.params import FIELDS, NEUTRAL, SamplingParams
from tailrace.request.engine_fields import MAX_SEQUENCES
from tailrace.request.fields import MAX_SEED, MIN_SEED
from tailrace.sampling.keys import request_key

# Fields that the sampler does not act on → what does. The engine acts on all of them. A program that uses the library
# alone must do so itself.
CALLER_FIELDS: dict[str, str] = {name: field.instead for name, field in FIELDS.items() if field.instead}
READ_BY_MIN_TOKENS = ("stop_token_ids", "ignore_eos")


def check_caller_fields(params: SamplingParams, key: int | None, handled: Collection[str]) -> None:
    """Raise ParameterError for the first field that is not neutral, that the sampler does not act on, and that the
    caller does not handle. The message names the alternative."""
    for name, instead in CALLER_FIELDS.items():
        if name in handled or getattr(params, name) == NEUTRAL[name]:
            continue
        if name in READ_BY_MIN_TOKENS and params.min_tokens:
            continue
        raise ParameterError(f"{name} has no effect in the sampler: {instead}, and leave it out", name)
    if params.seed is None or key is None or "seed" in handled:
        return
    of_seed = (request_key(params.seed, index) for index in range(MAX_SEQUENCES))  # the first one nearly always matches
    if key not in of_seed:
        raise ParameterError(f"seed {params.seed} has no effect beside key {key}: leave one of them out", "seed")


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise ParameterError unless the value is of this type."""
    if not isinstance(value, kind):
        raise ParameterError(f"{name} must be a {kind.__name__}, got {type(value).__name__}", name)


def checked_names(name: str, names: Collection[str]) -> Collection[str]:
    """Raise ParameterError unless the names are fields of CALLER_FIELDS, or seed. A single string is refused too: it
    would be read letter by letter."""
    try:
        unknown = (
            [names] if isinstance(names, str) else [one for one in names if one not in CALLER_FIELDS and one != "seed"]
        )
    except TypeError:
        unknown = [names]
    if unknown:
        raise ParameterError(
            f"{name} must be a list of names out of seed, {', '.join(CALLER_FIELDS)}; got {unknown[0]!r:.100}", name
        )
    return frozenset(names)


def checked_key(key: int) -> int:
    """Raise ParameterError unless it is an integer of 64 bits."""
    if isinstance(key, bool) or not isinstance(key, int) or not MIN_SEED <= key <= MAX_SEED:
        raise ParameterError(f"key must be an integer of 64 bits, got {key!r}", "key")
    return key


def checked_ids(name: str, ids: Sequence[int], bound: int) -> list[int]:
    """Return the ids as a new list. They may come as any sequence, array or tensor of whole numbers.

    Raises:
        ParameterError: the argument is none of these, or an id lies outside 0 … bound − 1.
    """
    try:
        array = np.asarray(make_plain(name, ids) if isinstance(ids, torch.Tensor) else ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ParameterError(f"{name} must be a list of whole numbers: {error}", name) from error
    if array.size == 0 and array.ndim == 1:
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu" or not 0 <= array.min() <= array.max() < bound:
        raise ParameterError(
            f"{name} must be a list of whole numbers in 0 … {bound - 1}, got {describe_array(array)}", name
        )
    return array.tolist()


def checked_few(name: str, ids: Sequence[int], bound: int) -> list[int]:
    """Do the same as `checked_ids`, but faster for a few ids."""
    if isinstance(ids, torch.Tensor):
        ids = make_plain(name, ids).tolist()
    try:
        few = list(ids)
    except TypeError as error:
        raise ParameterError(f"{name} must be lists of token ids, one per slot: {error}", name) from error
    for id in few:
        if type(id) is not int or not 0 <= id < bound:
            return [checked_id(name, id, bound) for id in few]
    return few


def checked_lists(slots: Iterable[int], tokens: Iterable[Sequence[int]]) -> list[tuple[int, Sequence[int]]]:
    """Return each slot with its list of tokens.

    Raises:
        ParameterError: an argument is no list, or the number of lists differs from the slots'.
    """
    try:
        where, given = list(slots), list(tokens)
    except TypeError as error:
        name, odd = ("tokens", tokens) if isinstance(slots, Iterable) else ("slots", slots)
        raise ParameterError(f"{name} must be a list, got {odd!r:.100}", name) from error
    if len(where) != len(given):
        raise ParameterError(f"tokens must hold a list for each of {len(where)} slots, got {len(given)}", "tokens")
    return list(zip(where, given, strict=True))


def checked_id(name: str, id: int, bound: int) -> int:
    """Return a token id as Python's integer, also from numpy's or torch's. Raise ParameterError for anything else."""
    try:
        number = convert_integer(id)
    except (TypeError, RuntimeError) as error:
        raise ParameterError(f"{name} must be lists of token ids, one per slot: {error}", name) from error
    if not 0 <= number < bound:
        hint = "; Sampled.tokens() leaves out what is none" if number == -1 else ""
        raise ParameterError(f"{name} must be token ids in 0 … {bound - 1}, got {number}{hint}", name)
    return number


def checked_size(name: str, size: int, low: int, high: int = 2**31) -> int:
    """Raise ParameterError unless it is an integer in low … high."""
    try:
        number = convert_integer(size)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise ParameterError(f"{name} must be an integer in [{low}, {high}], got {size!r:.100}", name)
    return number


def convert_integer(id: object) -> int:
    """Return an integer of numpy or torch as Python's. Raise TypeError for anything else, bool included."""
    if isinstance(id, bool):
        raise TypeError("a truth value is no token id")
    return operator.index(id)  # pyright: ignore[reportArgumentType]


def describe_array(array: np.ndarray) -> str:
    """Describe an array for an error message."""
    return (
        f"{array.dtype} {array.shape}"
        if array.dtype.kind not in "iu" or array.size == 0
        else f"values from {array.min()} to {array.max()}"
    )
