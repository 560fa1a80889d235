"""Draws along whole answers: each token with the distribution that was reported for its own place.

Of each place only draws of reported tokens count, given that it was one of them. So nothing depends on the mass of the
others, nor on how a server reports the token that ends an answer. The report and the draw come from the same logits, so
only the rounding of what is printed is tolerated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.reply import ReplyChoice, reply
from tailrace_conform.sequential import Cell, Evidence, Finding, Probabilities, add, box, judge, log_e, remaining, weigh
from tailrace_conform.spread import SAME_STEP, Key, Source, key_of, names_one_token, seeded, top_of
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

LENGTH = 32  # tokens of a path
TOKENS = 4  # of paths, for each draw of the budget: they come many to a request
TOP = 20


@dataclass(frozen=True)
class Place:
    """A drawn token among those reported for its place. at: which of `keys`. law: their probabilities, given that it is
    one of them, as reported."""

    keys: tuple[Key, ...]
    law: Probabilities
    at: int

    @property
    def key(self) -> Key:
        return self.keys[self.at]


@dataclass(frozen=True)
class Path:
    """An answer. tokens: all drawn keys. places: per token, None where the token was not among the reported ones."""

    seed: int | None
    tokens: tuple[Key, ...]
    places: tuple[Place | None, ...]
    exchange: Exchange


@dataclass(frozen=True)
class Bet:
    """What a law expects of a place (None: what is reported), and the deviations; see sequential.Cell."""

    law: Probabilities | None = None
    stated: Mapping[str, Probabilities] = field(default_factory=dict)
    others: Mapping[str, Probabilities] = field(default_factory=dict)


# Of a path and a place in it: the bet; None where it says nothing. It may look at what came before the place only.
Bets = Callable[[Path, int, Place], Bet | None]


@dataclass(frozen=True)
class PathOutcome:
    """What a test along paths found. draws: places that counted."""

    finding: Finding
    evidence: Evidence
    draws: int
    exchange: Exchange


def path_of(choice: ReplyChoice, seed: int | None, exchange: Exchange, top: int) -> Path:
    """The path of a choice. top: so many of the likeliest were asked for. Some servers report the drawn token beside
    them, as one more; such a draw does not count: which tokens are reported must not depend on the draw."""
    places = []
    for token in choice.tokens:
        usable = {key: value for key, value in list(top_of(token).items())[:top] if names_one_token(key)}
        key = key_of(token)
        if key not in usable or len(usable) < 2:
            places.append(None)
            continue
        scaled = [math.exp(value) for value in usable.values()]
        total = sum(scaled)
        keys = tuple(usable)
        places.append(Place(keys, tuple(p / total for p in scaled), keys.index(key)) if total > 0 else None)
    return Path(seed, tuple(map(key_of, choice.tokens)), tuple(places), exchange)


async def paths(ctx: LawContext, found: Source, fields: Mapping[str, Any], count: int) -> list[Path]:
    """About `count` answers to the run's prompt, with fresh seeds."""
    assert found.spread is not None
    size = min(found.size, count)
    body = {**found.neutral, **fields, "max_tokens": LENGTH} | ({"n": size} if size > 1 else {})
    top = min(TOP, len(found.spread.keys))
    made = await ctx.together(
        ctx.generate(found.spread.prompt, logprobs=top, **seeded(ctx, body)) for _ in range(max(1, count // size))
    )
    return [path_of(choice, None, one, top) for one in made for choice in reply(one).choices.values()]


def one_draw(place: Place, bet: Bet) -> Cell:
    """A place as a cell. The count is of one draw."""
    law = bet.law or place.law
    counts = tuple(int(at == place.at) for at in range(len(law)))
    return Cell(counts, law, *box(law, SAME_STEP), bet.stated, bet.others)


def weigh_paths(made: Iterable[Path], bets: Bets) -> tuple[Evidence, int]:
    """The evidence of all places for which the bets have a distribution, and how many they are."""
    evidence, draws = Evidence(), 0
    for path in made:
        for at, place in enumerate(path.places):
            if place is not None and (bet := bets(path, at, place)) is not None:
                evidence = add(evidence, weigh(one_draw(place, bet)))
                draws += 1
    return evidence, draws


async def follow(ctx: LawContext, found: Source, fields: Mapping[str, Any], bets: Bets, alpha: float) -> PathOutcome:
    """Draw paths until a test decides or the budget ends."""
    evidence, draws, drawn = Evidence(), 0, 0
    while True:
        made = await paths(ctx, found, fields, 8)
        more, places = weigh_paths(made, bets)
        evidence, draws = add(evidence, more), draws + places
        drawn += sum(len(path.tokens) for path in made)
        finding = judge(evidence, alpha)
        if finding != "open" or drawn >= TOKENS * ctx.budget.draws or not drawn:
            return PathOutcome(finding, evidence, draws, made[0].exchange)


def softmax(values: Sequence[float]) -> Probabilities:
    top = max(values)
    scaled = [math.exp(value - top) for value in values]
    total = sum(scaled)
    return tuple(one / total for one in scaled)


def figures_of(outcome: PathOutcome) -> dict[str, Any]:
    """The numbers behind a verdict; see counting.figures_of."""
    value = log_e(outcome.evidence)
    return {"draws": outcome.draws, "log_e": round(value, 2) if math.isfinite(value) else None}


def likeliest(evidence: Evidence) -> str:
    """The deviation that fits the draws best."""
    found = {name: score.mixed for name, score in evidence.stated.items()} | dict(evidence.others)
    return max(found, key=lambda name: found[name], default="")


def path_verdict(outcome: PathOutcome, required: Sequence[str] | None = None) -> Verdict:
    """What is said of the outcome. required: deviations whose exclusion suffices at the budget's end; None: all."""
    if outcome.finding == "broken":
        said = f"{outcome.draws} draws look like this instead: {likeliest(outcome.evidence)}"
        return broken(said, outcome.exchange, **figures_of(outcome))
    left = remaining(outcome.evidence)
    excluded = [name for name in outcome.evidence.stated if name not in left]
    said = f"{outcome.draws} draws exclude: {'; '.join(excluded) or 'nothing'}"
    said += f"; not yet: {'; '.join(left)}" if left else ""
    if outcome.finding == "holds" or (required and set(required) <= set(excluded)):
        return holds(said, **figures_of(outcome))
    return inconclusive(said, outcome.exchange, **figures_of(outcome))
