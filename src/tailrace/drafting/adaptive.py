"""Acceptance and load → how many drafts each sequence gets in this step. Knows no tokens and no model; deterministic given what it is
told.

A step is worth its tokens per second. Of k drafts stand, on average, p·(1 + q + … + q^(k−1)), where p is the share of first drafts that
stand and q that of later ones after accepted ones. (With p = q these are, with the sequence's own token, the (1 − p^(k+1)) / (1 − p)
of Leviathan et al., arXiv 2211.17192. They are two because a copy is right or wrong from its first token on.) Draft positions of all
sequences are taken in the order of what they will bring, as many as make the step worth most, by the time that steps of so many tokens
took. So guessing ends by itself where it would lose: on free text, and where with many streams every token costs time.

A sequence that gets none by this rule is probed now and then, since its text may have changed.

What is believed may be wrong: kernels work in whole tiles, clocks are noisy, texts change. So each step with drafts is settled against a
plain one: the time that it took more is paid from a purse, and what its accepted drafts would have taken is paid in. Nothing is guessed
while the purse is empty; plain steps put 1.5 % of their time into it. That bounds the loss, whatever the reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tailrace.errors import ConfigError
from tailrace.options import MAX_DRAFTS

PROBE = 2  # drafts of a probe: the second says whether what stands goes on
MAX_SPACING = 32  # steps between two probes of one sequence
# The purse, in plain steps' time (steps without drafts):
RATE = 0.015  # goes into it with each plain step
START, FULL, DEBT = 1.0, 2.0, -2.0  # are in it at first, at most and at least: good times do not pay for bad ones
CLIP = 0.5  # so far off its size's usual time a step is charged, since others take the cores now and then, but never more than its
# tokens one by one
PRIOR_WEIGHT = 2.0  # observations that what is known of all sequences counts for in one


class Pace:
    """How many drafts each sequence gets. Sequences are known by their slots; times are in seconds.

    For each step `counts`, and then `guessed`, and then, in any order, `stepped` if there was no prefill in it, and `drafted` for those
    that were asked. Of a step without drafts `stepped` may come after the next one's `counts`, with the `stride` that was there after its
    own. With adaptive=False each gets as many as it can have.

    Raises:
        ConfigError: max_drafts is not in 0 … 32.
    """

    def __init__(self, max_drafts: int, adaptive: bool = True) -> None:
        if not 0 <= max_drafts <= MAX_DRAFTS:
            raise ConfigError(f"max_drafts must be in 0 … {MAX_DRAFTS}, got {max_drafts}")
        self._max_drafts = max_drafts
        self._adaptive = adaptive
        self._time = StepTime()
        self._guess = GuessTime()
        self._all = _Acceptance(memory=100.0)
        self._all.first.add(2.0, 4.0)  # until something is known: one in two stands …
        self._all.later.add(3.0, 4.0)  # … and of what follows an accepted one three in four
        self._known: dict[int, _Known] = {}
        self._held = Ratio(memory=100.0)  # seconds that a step is held up for, once for all that ask
        self._purse = START
        self.stride = Stride()

    def counts(self, asks: Sequence[tuple[int, int]], others: int) -> list[int]:
        """How many drafts each may get, 0: none.

        asks: (slot, the most that it can have) of the sequences that decode in this step. others: further tokens of the step: prefills,
        and sequences that nothing is guessed for.
        """
        counts = [max(0, min(limit, self._max_drafts)) for _, limit in asks]
        if self._adaptive:
            last = self.stride
            if last.plain is False and last.plain_s:  # one with prefills has no plain one to be compared with
                self._settle(last, 1.0 - last.forward_s / last.plain_s + last.accepted / last.sequences)
            self.stride = Stride(tokens=len(asks) + others)
            if any(counts):
                known = [self._known.setdefault(slot, _Known()) for slot, _ in asks]
                counts = self._chosen(known, counts, others)
            self.stride.asked = len(counts) - counts.count(0)
        return counts

    def drafted(self, slot: int, offered: int, accepted: int) -> None:
        """Of `offered` drafts the first `accepted` stood. offered = 0: it was asked, and the drafter had nothing."""
        known = self._known.setdefault(slot, _Known())
        known.ready.add(float(offered > 0), 1.0)
        if not offered:
            return  # a probe that cost nothing stays due
        known.acceptance.add(offered, accepted)
        self._all.add(offered, accepted)
        if accepted == offered:
            known.spacing = 1
        elif known.probed:
            known.spacing = min(2 * known.spacing, MAX_SPACING)
        known.wait = known.spacing
        self.stride.accepted += accepted

    def stepped(self, tokens: int, seconds: float, stride: Stride | None = None) -> None:
        """A decode step of so many tokens, drafts included, took so long: forward pass and sampling, no prefill in it. stride: of a step
        that is not the last one."""
        if tokens < 1 or seconds <= 0.0:
            return
        step = stride or self.stride
        step.plain = tokens <= step.tokens
        usual_s = self._time.add(tokens, seconds, step.plain)
        if step.plain:
            self._settle(step, RATE)
        else:
            most_s = (1.0 + CLIP) * min(usual_s, step.plain_s * tokens / max(1, step.tokens))
            step.forward_s = min(max(seconds, (1.0 - CLIP) * usual_s), most_s)

    def guessed(self, drafts: int, seconds: float) -> None:
        """Making so many drafts took so long."""
        self._guess.add(self.stride.asked, drafts, seconds)
        self.stride.guess_s += seconds

    def held_up(self, seconds: float) -> None:
        """The step began so much later than it might have, since somebody was asked for guesses or had some before: where steps overlap."""
        self._held.add(seconds, 1.0)
        self.stride.guess_s += seconds

    def remove(self, slot: int) -> None:
        """The slot's sequence is gone."""
        self._known.pop(slot, None)

    def _settle(self, step: Stride, saved: float) -> None:
        """Pay for a step that has saved so many plain ones' time. Before plain ones are known nothing can be paid."""
        if step.plain_s:
            self._purse = min(max(self._purse + saved - step.guess_s / step.plain_s, DEBT), FULL)

    def _chosen(self, known: list[_Known], most: list[int], others: int) -> list[int]:
        """The counts of this step, by all that is known."""
        for one in known:
            one.probed = False
            one.wait -= 1
        step, sequences = self.stride, len(known)
        # a size that came without prefills is one of sequences that decode
        plain = sequences + others if self._time.settled(sequences + others) else sequences
        step.sequences, step.plain_s = sequences, self._time.ahead(plain, 0)[0]
        if self._purse < 0.0 or not self._time.settled(plain):  # without the time of plain steps nothing can be judged
            return [0] * sequences
        room = max(PROBE, min(sum(most), self._time.reach() - plain))
        step_s = self._time.ahead(sequences + others, room + 1)
        counts = self._worthwhile(known, [min(each, room) for each in most], step_s)
        self._probe(known, most, counts, step_s)
        return counts

    def _worthwhile(self, known: list[_Known], most: list[int], step_s: list[float]) -> list[int]:
        """The counts with which the step is worth most. step_s[m]: its time with m drafts. Drafts are charged what they add to the step,
        and prefills in it nothing: so they are judged by the rate of plain decoding there too."""
        gains: list[tuple[float, int]] = []
        for place, one in enumerate(known):
            gain, later = one.rates(self._all)
            for _ in range(most[place]):
                gains.append((-gain, place))
                gain *= later
        gains.sort()
        ready = [one.ready.value for one in known]
        ask_s, draft_s = self._guess.costs
        room, base_s = len(step_s) - 1, self.stride.plain_s - step_s[0]
        tokens, drafts = float(len(known)), 0.0
        asked: set[int] = set()
        best, taken = tokens / self.stride.plain_s, 0
        for number, (gain, place) in enumerate(gains, 1):
            tokens -= gain * ready[place]
            drafts += ready[place]
            if (m := int(drafts)) >= room:
                break
            if place not in asked:
                base_s += ask_s if asked else ask_s + self._held.value
                asked.add(place)
            forward_s = step_s[m] + (drafts - m) * (step_s[m + 1] - step_s[m])
            worth = tokens / (base_s + forward_s + draft_s * drafts)
            if worth > best:
                best, taken = worth, number
        counts = [0] * len(known)
        for _, place in gains[:taken]:
            counts[place] += 1
        return counts

    def _probe(self, known: list[_Known], most: list[int], counts: list[int], step_s: list[float]) -> None:
        """Give some of those that got none a few, as far as the purse allows; the longest overdue first."""
        due = [place for place, one in enumerate(known) if one.wait <= 0 and counts[place] == 0 and most[place]]
        at = min(sum(counts), len(step_s) - 1 - PROBE)
        ask_s, draft_s = self._guess.costs
        draft_s += (step_s[at + PROBE] - step_s[at]) / PROBE
        left = self._purse * self.stride.plain_s - (0.0 if any(counts) else self._held.value)
        for place in sorted(due, key=lambda place: known[place].wait):
            if left < 0.0:
                break
            counts[place] = min(PROBE, most[place])
            known[place].probed = True
            left -= known[place].ready.value * counts[place] * draft_s + ask_s


class Ratio:
    """A ratio of sums, in which each addition counts (1 − 1/memory) times what the next one does; 0 of nothing."""

    def __init__(self, memory: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self.above, self.below = 0.0, 0.0

    def add(self, above: float, below: float) -> None:
        """One more observation."""
        self.above = self.above * self._keep + above
        self.below = self.below * self._keep + below

    @property
    def value(self) -> float:
        """above / below."""
        return self.above / self.below if self.below else 0.0

    def towards(self, prior: float) -> float:
        """The same with PRIOR_WEIGHT observations of `prior`."""
        return (self.above + PRIOR_WEIGHT * prior) / (self.below + PRIOR_WEIGHT)


class _Acceptance:
    """The shares of drafts that stand: of first ones, and of later ones after accepted ones."""

    def __init__(self, memory: float) -> None:
        self.first, self.later = Ratio(memory), Ratio(memory)

    def add(self, offered: int, accepted: int) -> None:
        self.first.add(float(accepted > 0), 1.0)
        if (trials := min(offered - 1, accepted)) > 0:
            self.later.add(accepted - 1.0, trials)


@dataclass(slots=True)
class Stride:
    """What is known of a step. tokens: without drafts; sequences: those of them that drafts may be for; asked: those that get some.
    plain_s: its time without drafts. plain: it had none; None until its time is told, and so for good where it has prefills. accepted:
    drafts that stood. forward_s, guess_s: what it took."""

    tokens: int = 0
    sequences: int = 1
    asked: int = 0
    plain_s: float = 0.0
    plain: bool | None = None
    accepted: int = 0
    forward_s: float = 0.0
    guess_s: float = 0.0


@dataclass(slots=True)
class _Known:
    """Of one sequence. ready: how often the drafter has something when asked. wait: steps until the next probe, spacing: between the
    last two. probed: what it got last was a probe."""

    acceptance: _Acceptance = field(default_factory=lambda: _Acceptance(memory=16.0))
    ready: Ratio = field(default_factory=lambda: Ratio(memory=16.0))
    spacing: int = 1
    wait: int = 1
    probed: bool = False

    def __post_init__(self) -> None:
        self.ready.add(1.0, 1.0)

    def rates(self, all_of_them: _Acceptance) -> tuple[float, float]:
        """p and q."""
        return (
            self.acceptance.first.towards(all_of_them.first.value),
            self.acceptance.later.towards(all_of_them.later.value),
        )


RIDGE = 1e-3  # relative, on what drafts cost


class GuessTime:
    """Seconds that the drafter takes: so many for a sequence that is asked and so many for each draft, by least squares over the last
    hundred steps. Where these can't tell the two apart, both get their share (a ridge)."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of asked², asked·drafts, drafts², asked·seconds, drafts·seconds
        self.costs = (0.0, 0.0)

    def add(self, asked: int, drafts: int, seconds: float) -> None:
        """One step's guesses took so long."""
        new = (asked * asked, asked * drafts, drafts * drafts, asked * seconds, drafts * seconds)
        self._sums = [0.99 * old + more for old, more in zip(self._sums, new, strict=True)]
        aa, ad, dd, at, dt = self._sums
        aa, dd = aa + 1e-9, dd * (1.0 + RIDGE) + 1e-9
        det = aa * dd - ad * ad
        per_ask, per_draft = (dd * at - ad * dt) / det, (aa * dt - ad * at) / det
        if per_ask < 0.0:
            per_ask, per_draft = 0.0, dt / dd
        elif per_draft < 0.0:
            per_ask, per_draft = at / aa, 0.0
        self.costs = (per_ask, per_draft)


SAMPLES = 31  # of a node that count
SETTLED = 5  # samples from which on their median is meant; before that the smallest, since the first steps are slow
DRIFT = 0.1  # of a step's deviation moves the level
PLAIN, REFRESH = (
    3,
    256,
)  # plain steps to be seen before anything is guessed, and steps after which one is looked at again
FORGET = 2048  # steps after which a node that was not met is dropped, and tried again
FLAT = 0.02  # of a token's time: what another one adds, until measured


class StepTime:
    """Seconds of a step as a function of its tokens, from the steps so far.

    Nodes, four to an octave of token counts, hold the last times, as multiples of a common level. The level follows what changes all of
    them, as texts grow longer or another process takes the cores: so what is known of sizes that did not come for a while ages
    well. Between nodes the curve is linear, and it never falls (isotonic regression: more tokens do not take less time).
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._nodes: dict[tuple[int, bool], _Node] = {}
        self._curve: list[tuple[float, float]] = []
        self._steps = 0

    def settled(self, tokens: int) -> bool:
        """Enough plain steps of about that size were seen, and not too long ago."""
        node = self._nodes.get((_size(tokens), True))
        return node is not None and len(node.times) >= PLAIN and self._steps - node.at < REFRESH

    def reach(self) -> int:
        """Twice the largest size seen: further the curve is not to be trusted."""
        return round(2 * self._curve[-1][0]) if self._curve else 0

    def add(self, tokens: int, seconds: float, plain: bool) -> float:
        """One step of so many tokens took so long; both > 0. plain: there were no drafts among them. Returns how long they usually take."""
        self._steps += 1
        node = self._nodes.setdefault((_size(tokens), plain), _Node())
        node.at = self._steps
        if not self._level:
            self._level = seconds / _prior(tokens)
        if len(node.times) >= SETTLED:
            self._level *= min(2.0, max(0.5, seconds / self.ahead(tokens, 0)[0])) ** DRIFT
        node.add(tokens, seconds / self._level)
        self._nodes = {key: node for key, node in self._nodes.items() if self._steps - node.at < FORGET}
        settled = [node for (_, plain), node in self._nodes.items() if len(node.times) >= (PLAIN if plain else SETTLED)]
        self._curve = _rising(sorted((node.tokens, node.time, len(node.times)) for node in settled))
        return node.time * self._level

    def ahead(self, tokens: int, more: int) -> list[float]:
        """Of steps of tokens, tokens + 1, … tokens + more tokens; without measurements in a unit of its own."""
        curve = self._curve or [(1.0, 1.0)]
        (first, first_s), (last, last_s) = curve[0], curve[-1]
        slope = (last_s - first_s) / (last - first) if last > first else last_s * FLAT / _prior(last)
        end = max(last, tokens + more) + 1.0
        xs = [0.0, *(x for x, _ in curve), end]
        ys = [first_s * _prior(0) / _prior(first), *(y for _, y in curve), last_s + slope * (end - last)]
        out, at = [], max(1, bisect_left(xs, tokens))
        for n in range(tokens, tokens + more + 1):
            while xs[at] < n:
                at += 1
            share = (n - xs[at - 1]) / (xs[at] - xs[at - 1])
            out.append((ys[at - 1] + share * (ys[at] - ys[at - 1])) * (self._level or 1.0))
        return out


class _Node:
    """The last steps of about one size: their mean number of tokens, their times."""

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=SAMPLES)
        self.tokens = 0.0
        self.time = 0.0
        self.at = 0  # the last step of it

    def add(self, tokens: int, time: float) -> None:
        self.times.append(time)
        self.tokens += (tokens - self.tokens) / len(self.times)
        self.time = median(self.times) if len(self.times) >= SETTLED else min(self.times)


def _size(tokens: int) -> int:
    shift = max(0, tokens.bit_length() - 3)
    return tokens >> shift << shift


def _prior(tokens: float) -> float:
    return 1.0 + FLAT * tokens


def _rising(points: list[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Isotonic regression by pooling neighbours that fall: (x, y, weight), in the order of x → (x, y) with y rising."""
    pools: list[tuple[float, float, list[float]]] = []  # the mean of y, its weight, the x
    for x, y, weight in points:
        pool = (y, float(weight), [x])
        while pools and pools[-1][0] >= pool[0]:
            y0, weight0, xs = pools.pop()
            total = weight0 + pool[1]
            pool = ((y0 * weight0 + pool[0] * pool[1]) / total, total, xs + pool[2])
        pools.append(pool)
    return [(x, y) for y, _, xs in pools for x in xs]
