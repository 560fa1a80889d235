"""Draws with different seeds, and at different places, are independent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_LOGPROBS
from tailrace_conform.law import Law
from tailrace_conform.laws.logprobs.greedy import look
from tailrace_conform.paths import Bet, Path, PathOutcome, Place, likeliest, path_of, path_verdict, weigh_paths
from tailrace_conform.reply import reply
from tailrace_conform.sequential import SHARE, Evidence, Probabilities, add, judge, tempered
from tailrace_conform.spread import Source, source
from tailrace_conform.verdict import Verdict, inconclusive

LENGTH = 24
# Earlier draws that a draw may hang on: (seeds back, places on). A generator that is not advanced, or a counter that is
# the sum of seed and place, shows at these.
OFFSETS = ((0, -1), (0, -2), (0, -3), (1, 0), (1, 1), (1, -1), (2, 0), (2, 2))
# How often a draw repeats the earlier one, in the stated deviations, by the draws that the budget has.
WEIGHTS = ((1_000, 0.5), (10_000, 0.25), (1 << 62, 0.12))
AT_ONCE = 8
POWERS = (0.5, 0.7, 1.5, 2.0)  # of what logprobs.paths looks for: where it fits better, that law has the finding


def same_token(place: Place, earlier: Place, weight: float) -> Probabilities:
    """The earlier token comes again with this weight, as where tokens keep their noise."""
    if earlier.key not in place.keys:
        return place.law
    at = place.keys.index(earlier.key)
    return tuple((1 - weight) * p + weight * (other == at) for other, p in enumerate(place.law))


def same_quantile(place: Place, earlier: Place, weight: float) -> Probabilities:
    """The same uniform number is used again with this weight: what lies where the earlier token lay in the order of the
    reports."""
    low = sum(earlier.law[: earlier.at])
    high = low + earlier.law[earlier.at]
    made, below = [], 0.0
    for p in place.law:
        overlap = max(0.0, min(high, below + p) - max(low, below))
        made.append((1 - weight) * p + weight * overlap / (high - low))
        below += p
    return tuple(made)


def bet_on(place: Place, earlier: Iterator[tuple[str, Place]], weight: float) -> Bet | None:
    """Bets that the draw repeats earlier ones."""
    stated: dict[str, Probabilities] = {}
    for name, one in earlier:
        stated[f"the same token as {name}"] = same_token(place, one, weight)
        stated[f"the same random number as {name}"] = same_quantile(place, one, weight)
    return (
        Bet(None, stated, {f"wrong logprobs/{power:g}": tempered(place.law, power) for power in POWERS})
        if stated
        else None
    )


def named(back: int, on: int) -> str:
    seed = f"with the seed {back} less" if back else ""
    place = f"{abs(on)} {'further' if on > 0 else 'earlier'}" if on else ""
    return " ".join(part for part in (place, seed) if part)


async def paths_of(ctx: LawContext, found: Source, seeds: list[int]) -> list[Path]:
    """An answer per seed."""
    assert found.spread is not None
    body = {**found.neutral, "max_tokens": LENGTH}
    top = len(found.spread.keys)
    made = await ctx.together(ctx.generate(found.spread.prompt, logprobs=top, seed=seed, **body) for seed in seeds)
    return [path_of(reply(one).choice(), seed, one, top) for seed, one in zip(seeds, made, strict=True)]


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if found.spread is None:
        return NO_LOGPROBS
    weight = next(size for most, size in WEIGHTS if ctx.budget.draws < most)
    by_seed: dict[int, Path] = {}

    def bets(path: Path, at: int, place: Place) -> Bet | None:
        return bet_on(place, before(by_seed, path, at), weight)

    evidence, draws, seed, tokens = Evidence(), 0, ctx.rng.randrange(2**30), 0
    while True:
        made = await paths_of(ctx, found, list(range(seed, seed + AT_ONCE)))
        by_seed.update({path.seed: path for path in made if path.seed is not None})
        more, places = weigh_paths(made, bets)
        evidence, draws, seed = add(evidence, more), draws + places, seed + AT_ONCE
        tokens += sum(len(path.tokens) for path in made)
        finding = judge(evidence, SHARE)
        if finding != "open" or tokens >= 4 * ctx.budget.draws or not tokens:
            break
    outcome = PathOutcome(finding, evidence, draws, made[0].exchange)
    if finding == "broken" and (likeliest(evidence) in evidence.others or await misplaced(ctx, found)):
        return inconclusive("the reported logprobs are not those that tokens are drawn by", made[0].exchange)
    return path_verdict(outcome)


async def misplaced(ctx: LawContext, found: Source) -> bool:
    """Whether the reports are not even those of a greedy answer (logprobs.greedy)."""
    assert found.spread is not None
    fields = {**found.neutral, "temperature": 0.0, "max_tokens": LENGTH}
    made = await ctx.generate(found.spread.prompt, logprobs=len(found.spread.keys), **fields)
    return look(reply(made).choice())[1] is not None


def before(by_seed: Mapping[int, Path], path: Path, at: int) -> Iterator[tuple[str, Place]]:
    """The earlier draws of the offsets. Within a path only what was drawn before; of lower seeds any place."""
    assert path.seed is not None
    for back, on in OFFSETS:
        other = by_seed.get(path.seed - back)
        if other is not None and 0 <= at + on < len(other.places) and (place := other.places[at + on]) is not None:
            yield named(back, on), place


LAW = Law(
    id="seeds.independent",
    sentence="Draws with different seeds are independent of each other, and so are draws at different places.",
    why="Noise that comes again one place or one seed later makes text repeat itself and averages lie.",
    method="Answers are drawn with consecutive seeds. At each place a sequential test bets that the draw repeats "
    "an earlier one: of the places before it, or of lower seeds at the same and at neighbouring places; as the same "
    "token, or as the same uniform number.",
    violation="A draw repeats an earlier one more often than its probability says.",
    check=check,
    needs=("seed", "logprobs", "temperature"),
    error_rate=SHARE,
    cost=20,
)
