"""Two drafters in one: text that was seen before is copied, and a drafter with weights drafts everything else.

A copy costs nothing, may be long, and is nearly always right where many tokens agree. In free text few agree, and there
is no copy. So the copy comes first, but only after so many tokens that it is as good as other drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates


class LookupDrafter(Drafter):
    """Drafter that asks `first`, and `second` for the sequences that `first` has no drafts for.

    Args:
        first: reads tokens alone: `NGram` or `Suffix`. The scores of its drafts are compared apart from those of
            `second`.
    """

    def __init__(self, first: Drafter, second: Drafter) -> None:
        if first.captures or first.cache_bytes or first.draws:
            raise ValueError(f"{type(first).__name__} does not draft from tokens alone")
        self.first, self.second = first, second
        self.draws, self.captures, self.cache_bytes = second.draws, second.captures, second.cache_bytes

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = [replace(draft, source="lookup") for draft in self.first.draft(requests)]
        rest = [place for place, draft in enumerate(drafts) if not draft.tokens]
        if rest:
            for place, draft in zip(rest, self.second.draft([requests[place] for place in rest]), strict=True):
                drafts[place] = draft
        return drafts

    def observe(self, seen: TargetStates) -> None:
        self.second.observe(seen)

    def remove(self, slot: int) -> None:
        self.first.remove(slot)
        self.second.remove(slot)
