"""repetition_penalty divides positive logits of tokens that were there, in prompt or output, and multiplies negative
ones, once for each token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_LOGPROBS, ROUND, misreported
from tailrace_conform.exchange import Exchange, Refused
from tailrace_conform.families import Member, Tolerances, steps, weigh_families
from tailrace_conform.law import Law
from tailrace_conform.paths import softmax
from tailrace_conform.sequential import SHARE as ALL
from tailrace_conform.sequential import Evidence, Finding, Probabilities, judge, log_e, remaining
from tailrace_conform.spread import Key, Source, Spread, draw, neutral_fields, source, spread_of, with_tolerance
from tailrace_conform.verdict import Verdict, broken, holds, ignored, inconclusive

PENALTIES = (1.06, 8.0)  # the small one tells how often it is applied, the large one that it is
# Words that come as often as not: what is applied for each occurrence moves them by other amounts.
WORDS = (
    "the the the sea the the the the stone the the the the sea the the",
    "was was was and was was was was to was was was was of was was",
)
ENDS = 4  # so many words less at the prompt's end are tried
ENOUGH = 0.15  # of the words that stand in it, and of others
SHARE = ALL / 2  # tried under two names
NAMES = ("repetition_penalty", "repeat_penalty")  # the second is llama.cpp's
# How far raw logits lie above their logprobs. Around the places where a penalised logit is 0 the steps are fine.
LOWEST, HIGHEST, COARSE, FINE, NEAR = -20.0, 50.0, 0.5, 0.04, 0.4
STATED = ("no effect", "the other way", "once for each occurrence")
MORE = 2.0  # looks at so many times the draws of the last look


def occurrences(spread: Spread) -> dict[Key, int]:
    """How often usable keys stand in the prompt: whole words only. Keys that may or may not be tokens of it (parts of
    its words) are left out."""
    words = Counter(" " + word for word in spread.prompt.split(" ")[1:])
    found = {}
    for key, one in zip(spread.keys, spread.usable, strict=True):
        text = key.decode(errors="replace") if isinstance(key, bytes) else key
        if one and text in words:
            found[key] = words[text]
        elif one and text.strip() and text.strip() not in spread.prompt:
            found[key] = 0
    return found


def penalised(spread: Spread, counts: Mapping[Key, int], power: str) -> Member:
    """The distribution of the keys where raw logits are logprobs plus an unknown."""
    logprobs = {key: math.log(p) for key, p in zip(spread.keys, spread.probabilities, strict=True) if key in counts}

    def member(above: float) -> list[Probabilities]:
        return [
            softmax([value - change(value + above, counts[key], power, penalty) for key, value in logprobs.items()])
            for penalty in PENALTIES
        ]

    return member


def unknowns(spread: Spread, counts: Mapping[Key, int]) -> tuple[list[float], Tolerances]:
    """The grid of how far raw logits lie above their logprobs, and how far half a step moves a penalised logit: where
    that is negative, half a step times penalty − 1."""
    seen = [-math.log(p) for key, p in zip(spread.keys, spread.probabilities, strict=True) if counts.get(key)]
    low, high = min(seen) - NEAR, max(seen) + NEAR
    grid = steps(LOWEST, low, COARSE) + steps(low, high, FINE) + steps(high, HIGHEST, COARSE)

    def tolerances(above: float) -> list[float]:
        half = (FINE if low <= above <= high else COARSE) / 2
        negative = above < max(seen)
        return [spread.tolerance + half * (penalty - 1 if negative else 1 - 1 / penalty) for penalty in PENALTIES]

    return grid, tolerances


def change(logit: float, count: int, power: str, penalty: float) -> float:
    """How far a raw logit moves down."""
    if not count or power == "no effect":
        return 0.0
    factor = penalty**count if power == "once for each occurrence" else penalty
    if (logit > 0) != (power == "the other way"):
        return logit - logit / factor
    return logit - logit * factor


def balance(spread: Spread) -> float:
    """The mass of the prompt's words, or of other tokens, whichever is less."""
    counts = occurrences(spread)
    of = dict(zip(spread.keys, spread.probabilities, strict=True))
    return min(sum(of[key] for key in counts if counts[key]), sum(of[key] for key in counts if not counts[key]))


async def repeating(ctx: LawContext) -> Spread | None:
    """What is reported after words that come again and again: of the first prompt that is balanced well, else of the
    best."""
    best = None
    for text in (" ".join(words.split(" ")[:-end]) for end in range(1, ENDS) for words in WORDS):
        found = await spread_of(ctx, text, **neutral_fields(ctx))
        if found and (best is None or balance(found) > balance(best)):
            best = found
        if best and balance(best) >= ENOUGH:
            break
    return best


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    spread = await repeating(ctx) if found.spread else None
    if spread is None:
        return NO_LOGPROBS
    here = Source(await with_tolerance(ctx, spread, found.neutral), found.size, found.neutral)
    verdict = await check_name(ctx, found, here, NAMES[0])
    if verdict.kind != "ignored":
        return verdict
    try:
        other = await check_name(ctx, found, here, NAMES[1])
    except Refused:
        return verdict
    return (
        Verdict(other.kind, f"under the name {NAMES[1]}: {other.said}", other.evidence, other.figures)
        if other.kind == "holds"
        else verdict
    )


async def check_name(ctx: LawContext, found: Source, here: Source, name: str) -> Verdict:
    assert here.spread is not None
    counts = occurrences(here.spread)
    if balance(here.spread) < ENOUGH / 3:
        return inconclusive(
            "the model does not go on with the prompt's words, or with nothing else", here.spread.exchange
        )
    finding, evidence, total, exchange = await follow_counts(ctx, here, name, counts)
    figures = {"draws": total, "log_e": round(log_e(evidence), 2) if math.isfinite(log_e(evidence)) else None}
    left = remaining(evidence)
    said = f"{total} draws exclude: {'; '.join(one for one in evidence.stated if one not in left) or 'nothing'}"
    if finding == "broken":
        if await misreported(ctx, found):
            return inconclusive(
                "without any knob the draws do not follow the reported logprobs either", exchange, **figures
            )
        best = max(evidence.stated, key=lambda one: evidence.stated[one].mixed)
        made = ignored if best == "no effect" else broken
        return made(f"{total} draws look like this instead: {best}", exchange, here.spread.exchange, **figures)
    if finding == "holds" or not {"no effect", "the other way"} & set(left):
        return holds(said + (f"; not yet: {'; '.join(left)}" if left else ""), **figures)
    return inconclusive(said + f"; not yet: {'; '.join(left)}", exchange, **figures)


async def follow_counts(
    ctx: LawContext, here: Source, name: str, counts: Mapping[Key, int]
) -> tuple[Finding, Evidence, int, Exchange]:
    """Draw with each of the penalties until a test decides or the budget ends. Only draws of the keys count."""
    assert here.spread is not None
    law = penalised(here.spread, counts, "once")
    families = {power: penalised(here.spread, counts, power) for power in STATED}
    grid, tolerances = unknowns(here.spread, counts)
    drawn: list[Counter[Key | None]] = [Counter() for _ in PENALTIES]
    looked, exchange = 0, here.spread.exchange
    while True:
        for group, penalty in zip(drawn, PENALTIES, strict=True):
            more, exchange = await draw(ctx, here, {name: penalty}, min(ROUND, ctx.budget.draws))
            group += more
        total, ended = sum(map(Counter.total, drawn)), drawn[0].total() >= ctx.budget.draws
        if not ended and total < MORE * looked:
            continue
        looked = total
        groups = [[group.get(key, 0) for key in counts] for group in drawn]
        evidence = weigh_families(groups, law, families, grid, tolerances)
        finding = judge(evidence, SHARE)
        if finding != "open" or ended:
            return finding, evidence, total, exchange


LAW = Law(
    id="knobs.repetition-penalty",
    sentence="repetition_penalty divides positive logits of tokens that were there, and multiplies negative ones.",
    why="Applied for each occurrence, or to tokens that were not there, it wrecks lists, code and names.",
    method="The prompt repeats some words, each another number of times. First tokens are drawn with it and compared "
    "with the reported raw odds after the penalty. Logits are not reported, only logprobs: what lies between them is "
    "unknown, so the law is a family, and only what no member explains is called broken.",
    violation="Words of the prompt become likelier, or those that stand there more often fall more.",
    check=check,
    needs=("repetition_penalty", "logprobs"),
    error_rate=ALL,
    cost=12,
)
