"""What a law is. Each stands in a small file of its own below laws/ and has an id that never changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_conform.context import LawContext
    from tailrace_conform.verdict import Verdict


@dataclass(frozen=True)
class Law:
    """A law, as the guide and the reports show it.

    id: "family.name", never changed. sentence: the law itself. why: why users care. method: how it is tested.
    violation: what one looks like. needs: names of capabilities.py that must be offered ("chat", "completions",
    "logprobs", a field's name), what the law is about first. Without a test the verdict is "not offered" where one is
    refused; where one is accepted and ignored it is "ignored" for the first, "not offered" for the others, which the
    test merely uses. error_rate: the share of the run's alpha that its test may spend on a false "broken"; 0 for an
    exact law. cost: about how many requests it sends with the quick budget, for the time left.
    """

    id: str
    sentence: str
    why: str
    method: str
    violation: str
    check: Callable[[LawContext], Awaitable[Verdict]]
    needs: tuple[str, ...] = ()
    error_rate: float = 0.0
    cost: int = 4

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]
