"""The law of the first tokens, for test_combinations.py: by enumeration, from the formulas, and as an engine draws
them."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from scipy import stats

from engine.harness import Harness, token_bytes_of
from oracles import brute
from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.drafting.model import DraftModel
from tailrace.grammar.service import Grammars
from tailrace.request.options import Grammar, Speculation
from tailrace.runners.scripted import ScriptedRunner

PIECES = ["a", "b", "c", "d", "<eos>"]
VOCAB, EOS = len(PIECES), len(PIECES) - 1
TOKEN_BYTES = token_bytes_of([piece.encode() for piece in PIECES], frozenset({EOS}))
GRAMMAR = Grammar(kind="regex", source="[abd][acd]{2,8}")
NEGATIVE = [3]
SCALE = 1.8
TOGETHER = 32  # sequences at a time


@dataclass(frozen=True)
class World:
    """prompt: its first token says which rows the target and the drafter have. drafts: per step. length: tokens that
    are looked at, which take several steps; room: tokens that are drawn."""

    prompt: tuple[int, int]
    drafts: int
    length: int
    room: int


# random: any rows. late: whether the first draft stands is often decided by the second, and the token that comes
# instead is followed by a
# step that decides the same with what the first has left unused: noise that serves twice makes itself felt most.
WORLDS = {"random": World((0, 1), 3, 4, 7), "late": World((2, 1), 2, 4, 4)}

Text = tuple[int, ...]
ASKED: dict[str, dict] = {
    "nothing": {},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.6, "frequency_penalty": 0.5, "temperature": 0.8},
    "min_p, bias": {"min_p": 0.15, "logit_bias": {1: 1.0, 3: -0.7}},
    "min_tokens": {"min_tokens": 2},
    "guidance": {"guidance_scale": SCALE, "negative_prompt": tuple(NEGATIVE)},
    "grammar": {"grammar": GRAMMAR},
    "all": {
        "guidance_scale": SCALE,
        "negative_prompt": tuple(NEGATIVE),
        "grammar": GRAMMAR,
        "presence_penalty": 0.8,
        "top_p": 0.9,
        "temperature": 1.1,
        "logit_bias": {2: 0.5},
    },
}


@cache
def row(what: str, first: int, last: int, place: int) -> tuple[float, ...]:
    """Logits that depend on the place: an error of one position can't hide."""
    rng = random.Random(f"{what} {first} {last} {place % 3}")
    return tuple(rng.gauss(0.0, 1.4) for _ in range(VOCAB))


def late(what: str, last: int) -> tuple[float, ...]:
    """After an "a" the two agree; else the drafter has a strong belief where the target has none."""
    if last == 0:
        return (1.0, 0.4, -0.3, -1.0, -4.0)
    return (0.0, 0.0, -5.0, -6.0, -7.0) if what == "target" else (1.5, -1.5, -5.0, -6.0, -7.0)


def target(ids: Sequence[int], start: int) -> tuple[float, ...]:
    if ids[0] == WORLDS["late"].prompt[0]:
        return late("target", ids[-1])
    return row("target", ids[0], ids[-1], len(ids) - start)


def script(ids: list[int]) -> torch.Tensor:
    return torch.tensor(target(ids, len(NEGATIVE) if ids[0] == NEGATIVE[0] else 2))


def guess_of(ids: Sequence[int]) -> torch.Tensor:
    """A drafter's logits, far enough from the target's that a third of the drafts is rejected."""
    if ids[0] == WORLDS["late"].prompt[0]:
        return torch.tensor(late("draft", ids[-1]))
    mine, other = row("target", ids[0], ids[-1], len(ids) - 2), row("draft", 0, ids[-1], len(ids))
    return torch.tensor(mine) * 0.5 + torch.tensor(other) * 0.7


@cache
def proposal(first: int, last: int, length: int) -> tuple[torch.Tensor, list[float]]:
    q = torch.softmax(guess_of([first] * (length - 1) + [last]), 0)
    return q, q.double().cumsum(0).tolist()


class Dense(Drafter):
    """Draws as many drafts as it may."""

    draws = True

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self.guess(ask) for ask in asks]

    def guess(self, ask: DraftRequest) -> Draft:
        tokens, rows, scores = list(ask.tokens), [], []
        for _ in range(ask.count):
            q, mass = proposal(tokens[0], tokens[-1], len(tokens))
            rows.append(q)
            tokens.append(self.rng.choices(range(VOCAB), cum_weights=mass)[0])
            scores.append(self.score(q, tokens[-1]))
        return Draft(tokens[len(ask.tokens) :], torch.stack(rows), scores)

    @staticmethod
    def score(q: torch.Tensor, token: int) -> float:
        """It may depend on q alone."""
        return float(q.max())

    def observe(self, seen) -> None:
        raise AssertionError("it captures nothing")

    def remove(self, slot: int) -> None:
        pass


class OneHot(Dense):
    """The likeliest one each time."""

    draws = False

    def guess(self, ask: DraftRequest) -> Draft:
        tokens = list(ask.tokens)
        for _ in range(ask.count):
            tokens.append(int(proposal(tokens[0], tokens[-1], len(tokens))[0].argmax()))
        return Draft(tokens[len(ask.tokens) :])


def draft_model(sampler):
    return DraftModel(ScriptedRunner(VOCAB, guess_of, 64), DraftSampler(sampler), 2 * TOGETHER, 16)


DRAFTERS = {"dense": lambda sampler: Dense(1), "one-hot": lambda sampler: OneHot(1), "draft model": draft_model}


def allowed(text: Text) -> list[int]:
    """By GRAMMAR."""
    if not text:
        return [0, 1, 3]
    return [0, 2, 3] + [EOS] * (len(text) >= 3)


def law_of(world: World, asked: str) -> dict[Text, float]:
    """First tokens → probability."""
    fields = dict(ASKED[asked])
    guided, ruled = bool(fields.pop("negative_prompt", ())), fields.pop("grammar", None) is not None
    fields.pop("guidance_scale", None)
    ask = brute.Ask(**fields, enders=[EOS])
    law: dict[Text, float] = {}
    waiting: list[tuple[Text, float]] = [((), 1.0)]
    while waiting:
        text, mass = waiting.pop()
        if len(text) == world.length or text[-1:] == (EOS,):
            law[text] = mass
            continue
        logits = list(target([*world.prompt, *text], 2))
        if guided:
            other = target([*NEGATIVE, *text], len(NEGATIVE))
            logits = [u + SCALE * (c - u) for c, u in zip(logits, other, strict=True)]
        if ruled:
            logits = [x if i in allowed(text) else brute.NONE for i, x in enumerate(logits)]
        follows = brute.distribution(logits, ask, list(world.prompt), list(text))
        waiting += [((*text, i), mass * p) for i, p in follows.items() if p > 0]
    return law


def drawn(
    world: World, count: int, drafter: str, rule: str, asked: str, grammars: Grammars | None, first_seed: int = 0
) -> Iterator[Text]:
    """The first tokens of so many sequences of different seeds."""
    harness = Harness(
        ScriptedRunner(VOCAB, script, 64),
        drafter=DRAFTERS[drafter],
        max_drafts=world.drafts,
        max_num_seqs=TOGETHER,
        max_num_batched_tokens=8 * TOGETHER,
        num_blocks=2 * TOGETHER,
        prefix_reuse=False,
        token_bytes=TOKEN_BYTES,
        grammars=grammars,
        eos=EOS,
    )
    n = TOGETHER // 2 if "guidance_scale" in ASKED[asked] else TOGETHER
    fields = {"temperature": 1.0, "max_tokens": world.room, "n": n, "speculation": Speculation(rule=rule)}
    for seed in range(-(-count // n)):
        harness.submit(f"r{seed}", list(world.prompt), seed=first_seed + seed, **fields | ASKED[asked])
    for story in harness.run(limit=10**6).values():
        yield tuple(story.tokens[: world.length])
    counters = harness.engine.counters
    assert count / 2 < counters.drafted_tokens
    share = counters.accepted_tokens / counters.drafted_tokens
    assert share > 0.1
    assert share < 0.9 or rule == "exact"  # coupled drafts agree almost always where few tokens are allowed


ALPHA = 1e-4  # of each law
DRAWN = {"all": 600, "grammar": 2000}  # sequences
FEWEST = 1000  # of the others; test_planted_faults_of_laws_are_seen shows that so many tell
Case = tuple[str, str, str, str]  # of the world, the drafter, the rule and what is asked


def p_of(case: Case, grammars: Grammars | None, count: int = 0, more: str = "") -> float:
    """The p-value of so many sequences, or as many as tell. more: for other seeds."""
    name, drafter, rule, asked = case
    seed = zlib.crc32(f"{' '.join(case)}{more}".encode())
    count = count or DRAWN.get(asked, FEWEST)
    found = list(drawn(WORLDS[name], count, drafter, rule, asked, grammars, seed))
    return p_value(found, law_of(WORLDS[name], asked))


def holds(case: Case, grammars: Grammars | None, count: int = 0, more: str = "") -> bool:
    """Looked at twice: how many drafts come at a time depends, with a grammar, on how long its masks take, so the seeds
    alone don't decide what is drawn. What is wrong is wrong in other sequences, too."""
    twice = 2 * (count or DRAWN.get(case[3], FEWEST))
    return p_of(case, grammars, count, more) > ALPHA or p_of(case, grammars, twice, f"{more} again") > ALPHA


def p_value(found: Sequence[Text], law: dict[Text, float]) -> float:
    """Of Pearson's chi-square, cells that expect fewer than 8 taken together."""
    counts = Counter(found)
    if any(text not in law for text in counts):
        return 0.0
    cells = [(counts[text], mass * len(found)) for text, mass in law.items()]
    large = [cell for cell in cells if cell[1] >= 8]
    small = [cell for cell in cells if cell[1] < 8]
    if small:
        large.append((sum(seen for seen, _ in small), sum(expected for _, expected in small)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in large)
    return float(stats.chi2.sf(statistic, len(large) - 1))
