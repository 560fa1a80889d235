"""What is known of a step, of the drafts that were made in it, and of one sequence's drafts so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.drafting.acceptance import Acceptance, Ratio


@dataclass(frozen=True, slots=True)
class Offer:
    """The drafts that were made for a sequence.

    - count: their number. scores: each one's score; of another number: they have none.
    - source: the name under which these scores are compared with what became of the drafts.
    - places: how many positions the step is expected to have for them, at least `count`. The number of drafts that are
      drawn from distributions may depend on the drawn tokens, on which no selection may depend. So for these it is the
      number that was asked for. For others it is `count`, which 0 stands for.
    """

    slot: int
    count: int
    scores: Sequence[float] = ()
    source: str = ""
    places: int = 0


@dataclass(slots=True)
class StepCost:
    """The numbers of a step.

    - tokens: without drafts.
    - sequences: the number of sequences that may have drafts. asked: the number that get some. drafts: how many, at
      most.
    - plain_s: the step's time without drafts.
    - plain: the step had no drafts. None until its time is known, and always for a step with prefills.
    - accepted: the number of accepted drafts.
    - forward_s, draft_s: the time that the step and its drafts took.
    """

    tokens: int = 0
    sequences: int = 1
    asked: int = 0
    drafts: int = 0
    plain_s: float = 0.0
    plain: bool | None = None
    accepted: int = 0
    forward_s: float = 0.0
    draft_s: float = 0.0


@dataclass(slots=True)
class DraftHistory:
    """The drafts of one sequence so far.

    - ready: how often the drafter has drafts when it is asked.
    - wait: steps until the next probe. spacing: steps between the last two probes.
    - probed: the last drafts were a probe. offer: the last scored drafts, until it is known what became of them.
      shares: for each of their scores, the share of accepted drafts with such a score at that time.
    - against_share: its accepted drafts over their number by the shares of all sequences.
    """

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(memory=16.0))
    ready: Ratio = field(default_factory=lambda: Ratio(memory=16.0))
    spacing: int = 1
    wait: int = 1
    probed: bool = False
    offer: Offer | None = None
    shares: Sequence[float] = ()
    against_share: Ratio = field(default_factory=lambda: Ratio(memory=32.0))

    def __post_init__(self) -> None:
        self.ready.add(1.0, 1.0)

    def estimate_acceptance(self, prior: tuple[float, float]) -> tuple[float, float]:
        """Return p and q. prior: those of all sequences."""
        return self.acceptance.first.apply_prior(prior[0]), self.acceptance.later.apply_prior(prior[1])

    @property
    def factor(self) -> float:
        """How often its drafts are accepted, as a multiple of the shares of all sequences."""
        return self.against_share.apply_prior(1.0)
