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

That decides how many drafts are made, from rates alone. Where a drafter scores its drafts, `select` then decides which
of them are verified (drafting/draft_budget.py): those that most likely survive, whoever's they are. A score becomes a
probability by the share of drafts with about that score that were accepted, and by how a sequence's own drafts did
against that share. As drafts that are not verified cost only their making, more are made than by the rates alone.

These estimates may be wrong: kernels work in whole tiles, clocks are noisy, texts change. So each draft step spends its
extra time from a budget and earns the time that its accepted drafts saved. While the budget is negative, nothing is
drafted. Steps without drafts add 1.5 % of their time to the budget. That bounds the loss, whatever the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tailrace.drafting.acceptance import Acceptance, Calibration, Ratio
from tailrace.drafting.draft_budget import DraftCosts, maximize_rate, multiply_chances, select_drafts
from tailrace.drafting.draft_history import DraftHistory, Offer, StepCost
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


class DraftLengthController:
    """Decides how many drafts each sequence gets. A sequence is named by its slot, or by another number that stands for
    another source of its drafts. Times are in seconds.

    For each step, first call `counts`, then `select` and `record_drafting`. Then call `record_step` if the step had no
    prefill, and `record_acceptance` for each sequence that was asked, in any order. If steps overlap, `record_step` may
    follow the next step's `counts`. It then gets as `record` the value that `step` had after its own `counts`. With
    adaptive=False each sequence gets as many drafts as it can have, and all are verified.

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
        self._all = Acceptance(memory=100.0)
        self._all.first.add(2.0, 4.0)  # prior: p is 1/2 …
        self._all.later.add(3.0, 4.0)  # … and q is 3/4
        self._sequences = defaultdict[int, DraftHistory](DraftHistory)
        self._calibrations = defaultdict[str, Calibration](Calibration)  # by the source of drafts
        self._kept = Ratio(memory=100.0)  # share of the scored drafts that were verified
        self._kept.add(1.0, 1.0)
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
                known = [self._sequences[slot] for slot, _ in requests]
                counts = self._choose_counts(known, counts, others)
            self.step.asked, self.step.drafts = len(counts) - counts.count(0), sum(counts)
        return counts

    def select(self, offers: Sequence[Offer]) -> list[int]:
        """Return how many of the drafts that were made for each sequence to verify, from its first on."""
        counts, step = [offer.count for offer in offers], self.step
        if not self._adaptive or not step.plain_s:
            return counts
        prior, scored, made = self._all.rates, dict[int, list[float]](), 0
        fixed, tokens, places = 0, float(step.sequences), 0
        for place, offer in enumerate(offers):
            known = self._sequences[offer.slot]
            places += max(offer.count, offer.places)
            if offer.count and len(offer.scores) == offer.count:
                known.offer, known.shares = offer, self._calibrations[offer.source].estimate_all(offer.scores)
                if not known.probed:
                    scored[place] = multiply_chances(known.shares, known.factor)
                    made += offer.count
                    continue
            p, q = known.estimate_acceptance(prior)
            fixed, tokens = fixed + offer.count, tokens + sum(p * q**n for n in range(offer.count))
        if scored:
            step_s = self._step_time.estimate_steps(step.tokens, places)
            ask_s, draft_s = self._draft_time.costs
            seconds = step.plain_s + step_s[fixed] - step_s[0] + self._delay.value
            seconds += ask_s * step.asked + draft_s * step.drafts
            selected = select_drafts(list(scored.values()), tokens, seconds, step_s[fixed:])
            self._kept.add(sum(selected), made)
            for place, count in zip(scored, selected, strict=True):
                counts[place] = count or self._probe(offers[place])
        return counts

    def skip_step(self) -> None:
        """Begin a step in which no sequence may have drafts. Its time is not recorded."""
        self.counts([], 0)

    def record_acceptance(self, slot: int, offered: int, accepted: int) -> None:
        """Record that the first `accepted` of `offered` verified drafts were accepted. offered = 0: the drafter was
        asked, but returned no drafts, or none was selected."""
        if not self._adaptive:
            return
        known = self._sequences[slot]
        known.ready.add(float(offered > 0 or known.offer is not None), 1.0)
        self._learn_scores(known, offered, accepted)
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

    def _learn_scores(self, known: DraftHistory, offered: int, accepted: int) -> None:
        """Compare the sequence's scores with what became of its drafts. The first draft that was not verified, behind
        accepted ones, counts with its probability. Otherwise the rates would be those of selected drafts."""
        offer, known.offer = known.offer, None
        if offer is None:
            return
        calibration = self._calibrations[offer.source]
        for place, score, share in zip(range(accepted + 1), offer.scores, known.shares, strict=False):
            if place < offered:
                calibration.add(score, place < accepted)
                known.against_share.add(float(place < accepted), share)
            else:
                for each in (known.acceptance, self._all):
                    each.add_expected(place, min(1.0, known.factor * share))

    def _probe(self, offer: Offer) -> int:
        """Return how many drafts of a sequence to verify although none pays: some if a probe is due."""
        known = self._sequences[offer.slot]
        known.probed = known.wait <= 0
        return min(PROBE, offer.count) if known.probed else 0

    def _update_budget(self, step: StepCost, saved: float) -> None:
        """Update the budget for a step that has saved the time of `saved` plain ones. Do nothing while that time is
        unknown."""
        if step.plain_s:
            self._budget = min(max(self._budget + saved - step.draft_s / step.plain_s, DEBT), FULL)

    def _choose_counts(self, known: list[DraftHistory], most: list[int], others: int) -> list[int]:
        """Return the counts of this step."""
        for one in known:
            one.probed, one.offer = False, None
            one.wait -= 1
        step, sequences = self.step, len(known)
        # A size that occurred without prefills is a step of sequences that decode.
        plain = sequences + others if self._step_time.settled(sequences + others) else sequences
        step.sequences, step.plain_s = sequences, self._step_time.estimate_steps(plain, 0)[0]
        if self._budget < 0.0 or not self._step_time.settled(plain):  # the time of plain steps is unknown
            return [0] * sequences
        limit = max(PROBE, min(sum(most), self._step_time.reach() - plain))
        step_s = self._step_time.estimate_steps(sequences + others, limit + 1)
        # Prefills in the step are charged nothing: such steps, too, are judged by the rate of plain decoding.
        base_s, (ask_s, draft_s) = step.plain_s - step_s[0], self._draft_time.costs
        costs = DraftCosts(step_s, base_s, ask_s, draft_s, self._delay.value, self._kept.value)
        prior = self._all.rates
        rates, ready = [one.estimate_acceptance(prior) for one in known], [one.ready.value for one in known]
        counts = maximize_rate(rates, [min(each, limit) for each in most], ready, costs)
        self._add_probes(known, most, counts, step_s)
        return counts

    def _add_probes(self, known: list[DraftHistory], most: list[int], counts: list[int], step_s: list[float]) -> None:
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
