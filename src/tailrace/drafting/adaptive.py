"""Acceptance and load → how many drafts each sequence gets in this step. This module knows no tokens and no model. Its
results follow from its inputs alone.

The best step has the most tokens per second. Of k drafts, p·(1 + q + … + q^(k−1)) are accepted on average. p is the
acceptance rate of first drafts, q that of later drafts after accepted ones. Two rates are needed because a copied text
is right or wrong from its first token on. With p = q, and the sequence's own token added, the sum is (1 − p^(k+1)) / (1
− p) of Leviathan et al., arXiv 2211.17192.

Draft positions of all sequences are taken in the order of their expected gain. Their number is the one that makes the
step best, by the measured time of steps of each size. So drafting ends by itself if it would lose time: on free text,
and with so many streams that every token costs time.

A sequence that gets no drafts by this rule is probed now and then, since its text may have changed.

These estimates may be wrong: kernels work in whole tiles, clocks are noisy, texts change. So each draft step spends its
extra time from a budget and earns the time that its accepted drafts saved. While the budget is negative, nothing is
drafted. Steps without drafts add 1.5 % of their time to the budget. That bounds the loss, whatever the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.drafting.step_time import DraftTime, StepTime
from tailrace.errors import ConfigError
from tailrace.request.options import MAX_DRAFTS

PROBE = 2  # Drafts of a probe; the second one measures q.
MAX_SPACING = 32  # Steps between two probes of one sequence.
# The budget, in units of the time of a step without drafts.
RATE = 0.015  # Added by each step without drafts.
START, FULL, DEBT = 1.0, 2.0, -2.0  # At first, at most, at least. The limits keep good times from paying for bad ones.
# A draft step is charged a time within this share of the usual time of its size, since other processes use the cores
# now and then. The charge is never more than the time of its tokens one by one.
CLIP = 0.5
PRIOR_WEIGHT = 2.0  # weight, in observations, of the rates of all sequences in the rates of one


class DraftLengthController:
    """Decides how many drafts each sequence gets. A sequence is named by its slot, or by another number that stands for
    another source of its drafts. Times are in seconds.

    For each step, first call `counts`, then `record_drafting`. Then call `record_step` if the step had no prefill, and
    `record_acceptance` for each sequence that was asked, in any order. If steps overlap, `record_step` may follow the
    next step's `counts`. It then gets as `record` the value that `step` had after its own `counts`. With adaptive=False
    each sequence gets as many drafts as it can have.

    Raises:
        ConfigError: max_drafts is not in 0 … 32.
    """

    def __init__(self, max_drafts: int, adaptive: bool = True) -> None:
        if not 0 <= max_drafts <= MAX_DRAFTS:
            raise ConfigError(f"max_drafts must be in 0 … {MAX_DRAFTS}, got {max_drafts}")
        self._max_drafts = max_drafts
        self._adaptive = adaptive
        self._step_time = StepTime()
        self._draft_time = DraftTime()
        self._all = _Acceptance(memory=100.0)
        self._all.first.add(2.0, 4.0)  # prior: p is 1/2 …
        self._all.later.add(3.0, 4.0)  # … and q is 3/4
        self._sequences: dict[int, _DraftHistory] = {}
        self._delay = Ratio(memory=100.0)  # seconds by which asking any sequence for drafts delays a step
        self._budget = START
        self.step = StepCost()

    def counts(self, requests: Sequence[tuple[int, int]], others: int) -> list[int]:
        """Return how many drafts each sequence may get; 0: none.

        Args:
            requests: the slot of each decoding sequence, and the most drafts that it can have.
            others: the step's further tokens, of prefills and of sequences that get no drafts.
        """
        counts = [max(0, min(limit, self._max_drafts)) for _, limit in requests]
        if self._adaptive:
            last = self.step
            if last.plain is False and last.plain_s:  # a step with prefills can't be compared with one without drafts
                self._update_budget(last, 1.0 - last.forward_s / last.plain_s + last.accepted / last.sequences)
            self.step = StepCost(tokens=len(requests) + others)
            if any(counts):
                known = [self._sequences.setdefault(slot, _DraftHistory()) for slot, _ in requests]
                counts = self._choose_counts(known, counts, others)
            self.step.asked = len(counts) - counts.count(0)
        return counts

    def skip_step(self) -> None:
        """Begin a step in which no sequence may have drafts. Its time is not recorded."""
        self.counts([], 0)

    def record_acceptance(self, slot: int, offered: int, accepted: int) -> None:
        """Record that the first `accepted` of `offered` drafts were accepted. offered = 0: the drafter was asked, but
        returned no drafts."""
        known = self._sequences.setdefault(slot, _DraftHistory())
        known.ready.add(float(offered > 0), 1.0)
        if not offered:
            return  # the probe cost nothing, so the next one stays due
        known.acceptance.add(offered, accepted)
        self._all.add(offered, accepted)
        if accepted == offered:
            known.spacing = 1
        elif known.probed:
            known.spacing = min(2 * known.spacing, MAX_SPACING)
        known.wait = known.spacing
        self.step.accepted += accepted

    def record_step(self, tokens: int, seconds: float, record: StepCost | None = None) -> None:
        """Record the time of a step without prefills: forward pass and sampling. tokens: with its drafts. record: the
        step's, if it is not the last one."""
        step = record or self.step
        if tokens < 1 or seconds <= 0.0 or not step.tokens:
            return
        step.plain = tokens <= step.tokens
        usual_s = self._step_time.add(tokens, seconds, step.plain)
        if step.plain:
            self._update_budget(step, RATE)
        else:
            most_s = (1.0 + CLIP) * min(usual_s, step.plain_s * tokens / max(1, step.tokens))
            step.forward_s = min(max(seconds, (1.0 - CLIP) * usual_s), most_s)

    def record_drafting(self, drafts: int, seconds: float) -> None:
        """Record the time of making this many drafts."""
        self._draft_time.add(self.step.asked, drafts, seconds)
        self.step.draft_s += seconds

    def record_delay(self, seconds: float) -> None:
        """Record how much later an overlapping step began because it had to wait for the samples before it."""
        self._delay.add(seconds, 1.0)
        self.step.draft_s += seconds

    def remove(self, slot: int) -> None:
        """Forget the slot's sequence."""
        self._sequences.pop(slot, None)

    def _update_budget(self, step: StepCost, saved: float) -> None:
        """Update the budget for a step that has saved the time of `saved` plain ones. Do nothing while that time is
        unknown."""
        if step.plain_s:
            self._budget = min(max(self._budget + saved - step.draft_s / step.plain_s, DEBT), FULL)

    def _choose_counts(self, known: list[_DraftHistory], most: list[int], others: int) -> list[int]:
        """Return the counts of this step."""
        for one in known:
            one.probed = False
            one.wait -= 1
        step, sequences = self.step, len(known)
        # A size that occurred without prefills is a step of sequences that decode.
        plain = sequences + others if self._step_time.settled(sequences + others) else sequences
        step.sequences, step.plain_s = sequences, self._step_time.estimate_steps(plain, 0)[0]
        if self._budget < 0.0 or not self._step_time.settled(plain):  # the time of plain steps is unknown
            return [0] * sequences
        limit = max(PROBE, min(sum(most), self._step_time.reach() - plain))
        step_s = self._step_time.estimate_steps(sequences + others, limit + 1)
        counts = self._maximize_rate(known, [min(each, limit) for each in most], step_s)
        self._add_probes(known, most, counts, step_s)
        return counts

    def _maximize_rate(self, known: list[_DraftHistory], most: list[int], step_s: list[float]) -> list[int]:
        """Return the counts with the most tokens per second. step_s[m]: the step's time with m drafts.

        Drafts are charged the time that they add. Prefills in the step are charged nothing: such steps, too, are judged
        by the rate of plain decoding.
        """
        gains: list[tuple[float, int]] = []
        for place, one in enumerate(known):
            gain, later = one.estimate_acceptance(self._all)
            for _ in range(most[place]):
                gains.append((-gain, place))
                gain *= later
        gains.sort()
        ready = [one.ready.value for one in known]
        ask_s, draft_s = self._draft_time.costs
        limit, base_s = len(step_s) - 1, self.step.plain_s - step_s[0]
        tokens, drafts = float(len(known)), 0.0
        asked: set[int] = set()
        best, taken = tokens / self.step.plain_s, 0
        for number, (gain, place) in enumerate(gains, 1):
            tokens -= gain * ready[place]
            drafts += ready[place]
            if (m := int(drafts)) >= limit:
                break
            if place not in asked:
                base_s += ask_s if asked else ask_s + self._delay.value
                asked.add(place)
            forward_s = step_s[m] + (drafts - m) * (step_s[m + 1] - step_s[m])
            rate = tokens / (base_s + forward_s + draft_s * drafts)
            if rate > best:
                best, taken = rate, number
        counts = [0] * len(known)
        for _, place in gains[:taken]:
            counts[place] += 1
        return counts

    def _add_probes(self, known: list[_DraftHistory], most: list[int], counts: list[int], step_s: list[float]) -> None:
        """Give a few drafts to sequences that got none, as far as the budget allows, the longest overdue first."""
        due = [place for place, one in enumerate(known) if one.wait <= 0 and counts[place] == 0 and most[place]]
        at = min(sum(counts), len(step_s) - 1 - PROBE)
        ask_s, draft_s = self._draft_time.costs
        draft_s += (step_s[at + PROBE] - step_s[at]) / PROBE
        left_s = self._budget * self.step.plain_s - (0.0 if any(counts) else self._delay.value)
        for place in sorted(due, key=lambda place: known[place].wait):
            if left_s < 0.0:
                break
            counts[place] = min(PROBE, most[place])
            known[place].probed = True
            left_s -= known[place].ready.value * counts[place] * draft_s + ask_s


class Ratio:
    """A ratio of sums. Each observation weighs (1 − 1/memory) times as much as the next one. Without observations it is
    0.
    """

    def __init__(self, memory: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self.above, self.below = 0.0, 0.0

    def add(self, above: float, below: float) -> None:
        """Add an observation."""
        self.above = self.above * self._keep + above
        self.below = self.below * self._keep + below

    @property
    def value(self) -> float:
        """above / below."""
        return self.above / self.below if self.below else 0.0

    def apply_prior(self, prior: float) -> float:
        """Return the ratio with PRIOR_WEIGHT observations of `prior` added."""
        return (self.above + PRIOR_WEIGHT * prior) / (self.below + PRIOR_WEIGHT)


class _Acceptance:
    """Acceptance rates: of first drafts, and of later drafts after accepted ones."""

    def __init__(self, memory: float) -> None:
        self.first, self.later = Ratio(memory), Ratio(memory)

    def add(self, offered: int, accepted: int) -> None:
        self.first.add(float(accepted > 0), 1.0)
        if (trials := min(offered - 1, accepted)) > 0:
            self.later.add(accepted - 1.0, trials)


@dataclass(slots=True)
class StepCost:
    """The numbers of a step.

    - tokens: without drafts.
    - sequences: the number of sequences that may have drafts. asked: the number that get some.
    - plain_s: the step's time without drafts.
    - plain: the step had no drafts. None until its time is known, and always for a step with prefills.
    - accepted: the number of accepted drafts.
    - forward_s, draft_s: the time that the step and its drafts took.
    """

    tokens: int = 0
    sequences: int = 1
    asked: int = 0
    plain_s: float = 0.0
    plain: bool | None = None
    accepted: int = 0
    forward_s: float = 0.0
    draft_s: float = 0.0


@dataclass(slots=True)
class _DraftHistory:
    """The drafts of one sequence so far.

    - ready: how often the drafter has drafts when it is asked.
    - wait: steps until the next probe. spacing: steps between the last two probes.
    - probed: the last drafts were a probe.
    """

    acceptance: _Acceptance = field(default_factory=lambda: _Acceptance(memory=16.0))
    ready: Ratio = field(default_factory=lambda: Ratio(memory=16.0))
    spacing: int = 1
    wait: int = 1
    probed: bool = False

    def __post_init__(self) -> None:
        self.ready.add(1.0, 1.0)

    def estimate_acceptance(self, all_of_them: _Acceptance) -> tuple[float, float]:
        """Return p and q."""
        return (
            self.acceptance.first.apply_prior(all_of_them.first.value),
            self.acceptance.later.apply_prior(all_of_them.later.value),
        )
