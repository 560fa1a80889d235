"""Options of a request that have fields of their own, each checked where it is made."""

from __future__ import annotations

from typing import Literal

import msgspec

from tailrace.errors import ParameterError
from tailrace.ranges import MAX_SEED, MIN_SEED, shown

MAX_PATTERN = 512  # tokens of a repeated pattern that is looked for
MAX_COUNT = 10_000  # times it may be asked to come


class Watermark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A watermark that the holder of `key` can detect later (sampling/watermark.py).

    Attributes:
        kind: "kgw": the green list of Kirchenbauer et al. (arXiv 2301.10226): a keyed share `gamma` of the vocabulary gets +`delta`.
            "synthid": the two-candidate tournament of Dathathri et al. (Nature 634, 2024), which keeps the distribution on
            average over contexts; where a context comes again, so do its favourites.
        key: 64-bit secret. context: how many tokens before seed the choice. gamma: 0 < γ < 1. delta: 0 < δ ≤ 100.
        depth: layers of the tournament, 1 … 64.
    """

    kind: Literal["kgw", "synthid"]
    key: int
    context: int = 4
    gamma: float = 0.25
    delta: float = 2.0
    depth: int = 30

    def __post_init__(self) -> None:
        for name, low, high in (("key", MIN_SEED, MAX_SEED), ("context", 1, 64), ("depth", 1, 64)):
            check_whole("watermark", name, getattr(self, name), low, high)
        if not 0.0 < self.gamma < 1.0:
            raise ParameterError(f"watermark.gamma must be a number in (0, 1), got {self.gamma!r}", "watermark")
        if not 0.0 < self.delta <= 100.0:
            raise ParameterError(f"watermark.delta must be a number in (0, 100], got {self.delta!r}", "watermark")


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End a sequence that goes round in circles: when its last tokens are one pattern, `min_count` times in a row.

    Attributes:
        max_pattern_size, min_pattern_size: tokens of the pattern, 1 … 512. min_count: how often it must come, 2 … 10,000.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 1

    def __post_init__(self) -> None:
        check_whole("repetition_detection", "max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN)
        check_whole("repetition_detection", "min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size)
        check_whole("repetition_detection", "min_count", self.min_count, 2, MAX_COUNT)


class Stretch(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A stretch of the text between two markers: what a model thinks, or a tool call.

    Attributes:
        opening, closing: the markers, as text; without a closing one it lasts to the end. opened: the prompt has opened it already.
    """

    opening: str
    closing: str | None
    opened: bool = False


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End the model's thinking when it has taken so many tokens, by forcing the tokens that close it; then it goes on by itself.

    Attributes:
        max_tokens: of one thought, the markers not counted; ≥ 0. stretch: how the model marks it. closing_token_ids: what is forced.
        outside: other stretches, in which the markers mean nothing.
    """

    max_tokens: int
    stretch: Stretch
    closing_token_ids: tuple[int, ...]
    outside: tuple[Stretch, ...] = ()

    def __post_init__(self) -> None:
        check_whole("thinking_token_budget", "", self.max_tokens, 0, 2**31 - 1)
        if self.stretch.closing is None or not self.closing_token_ids:
            raise ParameterError(
                "thinking_token_budget needs a marker that closes the thinking", "thinking_token_budget"
            )


def check_whole(field: str, part: str, value: object, low: int, high: int) -> None:
    """Raise ParameterError unless `value` is an integer in low … high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        name = f"{field}.{part}" if part else field
        raise ParameterError(f"{name} must be an integer in [{low}, {high}], got {shown(value)}", field)
