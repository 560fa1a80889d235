"""Look-ups in a row or its candidates: ranks, the largest entries, the values of a few given tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tailrace.sampling.candidates import Candidates

NEGATIVE_INFINITY = float("-inf")

Pair = tuple[torch.Tensor, torch.Tensor]


def best_two(scores: np.ndarray) -> list[int]:
    """Return the places of the two largest scores, or of the only one. Ties go to the first."""
    first = int(scores.argmax())
    others = scores.copy()
    others[first] = NEGATIVE_INFINITY
    return [first, int(others.argmax())] if scores.size > 1 else [first]


def likeliest_of(row: torch.Tensor, ascending: np.ndarray, count: int) -> list[int]:
    """Return the ids of the largest entries, without −inf. Ties go to the smaller id. ascending: all entries,
    sorted."""
    values = row.numpy()
    near = np.flatnonzero((values >= ascending[-min(count, values.size)]) & (values != NEGATIVE_INFINITY))
    return near[np.argsort(-values[near], kind="stable")][:count].tolist()


def ranks_of(row: torch.Tensor, ascending: np.ndarray, ids: torch.Tensor) -> torch.Tensor:
    """Return the ranks, int64 [n]: 1 is the largest; ties go to the smaller id. ascending: all entries, sorted."""
    values = row.numpy()
    mine = values[ids.numpy()]
    first, last = (np.searchsorted(ascending, mine, side) for side in ("left", "right"))
    ranks = values.size - last + 1
    for i in np.flatnonzero(last - first > 1):
        ranks[i] += np.count_nonzero(values[: int(ids[i])] == mine[i])
    return torch.from_numpy(ranks)


def mark_members(ids: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return bool [n]: which of `ids` are in `others`. All of `others` are in `ids`; both ascend."""
    table = torch.zeros(int(ids[-1]) + 1, dtype=torch.bool)
    table[others] = True
    return table[ids]


def places_in(ids: torch.Tensor, shown: torch.Tensor) -> Pair:
    """Return the place of each shown token in the ascending `ids`, and whether `ids` contains it."""
    places = torch.searchsorted(ids, shown).clamp(max=ids.numel() - 1)
    return places, ids[places] == shown


def where_in(candidates: Candidates, values: torch.Tensor, shown: torch.Tensor) -> list[float | None]:
    """Return each shown token's entry of `values`, which belong to the candidates; None if it is no candidate."""
    places, inside = places_in(candidates.ids, shown)
    return [value if there else None for value, there in zip(values[places].tolist(), inside.tolist(), strict=True)]


def pair_values(shown: torch.Tensor, values: list[float | None]) -> Iterator[tuple[int, float | None]]:
    """Yield pairs of id and value."""
    return zip(shown.tolist(), values, strict=True)


def list_numbers(values: torch.Tensor) -> list[float | None]:
    """Return the numbers as a list. −inf becomes None."""
    return [None if value == NEGATIVE_INFINITY else value for value in values.tolist()]
