"""The world of test_combinations.py: a small language with a grammar, a scripted target whose logits depend on the
whole text, drafters of every kind over it, and one run of any combination of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch

from engine.harness import Harness, Story, token_bytes_of
from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.drafting.model import DraftModel
from tailrace.drafting.ngram import NGram
from tailrace.drafting.suffix import Suffix
from tailrace.grammar.service import Grammars
from tailrace.params import SamplingParams
from tailrace.request.options import Grammar, Speculation
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Abort, Failed

PIECES = [*"abcd0123-,; ", "ab", "cd", "01", "2-", "<eos>"]
VOCAB, EOS = len(PIECES), len(PIECES) - 1
TOKEN_BYTES = token_bytes_of([piece.encode() for piece in PIECES], frozenset({EOS}))
WORD = r"([ab]{1,3}-[0-2]{2},){1,2}dcb;[cd]{2,9};"  # "cb;" is certain once "d" is said
GRAMMAR = Grammar(kind="regex", source=WORD)
BLOCK = 4  # positions; a rejected draft then often leaves a block of its own behind
LENGTH = 18  # tokens asked for
PROMPTS = ([0, 1, 8, 4, 5, 9, 0, 1, 8], list(range(7)), [2] * 4)
NEGATIVE = (3, 3, 11)

_LAST, _FIRST = np.random.default_rng(5).normal(size=(2, VOCAB, VOCAB)).astype(np.float32)


@cache
def _noise(ids: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(hash(ids) % 2**32).normal(size=VOCAB).astype(np.float32)


def target(ids: Sequence[int]) -> torch.Tensor:
    """Mostly of the last token, so that texts repeat themselves; a little of every token, so that any wrong one
    shows."""
    row = 2.4 * _LAST[ids[-1]] + 0.7 * _FIRST[ids[0]] + 0.6 * _noise(tuple(ids))
    row[EOS] = 0.12 * len(ids) - 1.0
    return torch.from_numpy(row)


def draft(ids: Sequence[int]) -> torch.Tensor:
    """What a smaller model would make of it."""
    row = 2.0 * _LAST[ids[-1]] + 0.5 * _FIRST[ids[0]]
    row[EOS] = 0.0
    return torch.from_numpy(row)


class Oracle(Drafter):
    """Guesses what plain decoding has said, wrong now and then, and of any length; of texts that it does not know,
    anything."""

    def __init__(self, texts: Sequence[Sequence[int]], accuracy: float = 0.8) -> None:
        self.texts, self.accuracy, self.rng = [list(text) for text in texts], accuracy, random.Random(3)

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self.guess(ask) for ask in asks]

    def guess(self, ask: DraftRequest) -> Draft:
        count, start = ask.count if self.accuracy == 1.0 else self.rng.randint(0, ask.count), len(ask.tokens)
        text = next((t for t in self.texts if t[:start] == list(ask.tokens)), [])
        tokens = [t if self.rng.random() < self.accuracy else self.rng.randrange(VOCAB) for t in text[start:]][:count]
        return Draft(tokens + [self.rng.randrange(VOCAB) for _ in range(count - len(tokens))])

    def observe(self, seen) -> None:
        raise AssertionError("it captures nothing")

    def remove(self, slot: int) -> None:
        pass


class Dense(Oracle):
    """Draws its guesses from distributions near the target's, which it returns."""

    draws = True

    def guess(self, ask: DraftRequest) -> Draft:
        tokens, rows = list(ask.tokens), []
        for _ in range(self.rng.randint(0, ask.count)):
            rows.append(torch.softmax(draft(tokens), 0))
            tokens.append(self.rng.choices(range(VOCAB), rows[-1].tolist())[0])
        return Draft(tokens[len(ask.tokens) :], torch.stack(rows) if rows else None)


Texts = Sequence[Sequence[int]]
# name → from what plain decoding has said, a factory as the engine takes it
DRAFTERS: dict[str, Callable[[Texts], Callable | None]] = {
    "none": lambda texts: None,
    "n-gram": lambda texts: lambda sampler: NGram(),
    "suffix": lambda texts: lambda sampler: Suffix(),
    "draft model": lambda texts: (
        lambda sampler: DraftModel(
            ScriptedRunner(VOCAB, draft, 512, block_size=BLOCK), DraftSampler(sampler), 160, BLOCK
        )
    ),
    "oracle": lambda texts: lambda sampler: Oracle(texts),
    "dense": lambda texts: lambda sampler: Dense(texts),
}


class Watched(Drafter):
    """A drafter whose asks are looked at: between two of a sequence lie at least the drafts that agree with what it has
    said, and one token more. ruled: by a grammar, whose masks may be late; drafts without one are dropped then."""

    def __init__(self, drafter, ruled: bool) -> None:
        self.ruled = ruled
        self.drafter, self.captures, self.draws = drafter, drafter.captures, drafter.draws
        self.last: dict[int, tuple[list[int], list[int]]] = {}  # slot → what it was asked for, and what it has said
        self.wrong: list[str] = []  # an engine goes on without a drafter that raises

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        try:
            drafts = self.drafter.draft(asks)
        except Exception as error:
            self.wrong.append(repr(error))
            raise
        for ask, guess in zip(asks, drafts, strict=True):
            now, (before, said) = list(ask.tokens), self.last.get(ask.slot, ([], []))
            agreed = next(
                (i for i, t in enumerate(said) if now[len(before) + i : len(before) + i + 1] != [t]), len(said)
            )
            if len(guess.tokens) > ask.count:
                self.wrong.append(f"{len(guess.tokens)} guesses for {ask.count}")
            if now[: len(before)] != before or (len(now) <= len(before) + agreed and not self.ruled):
                self.wrong.append(f"{agreed} of {said} after {before} agree, and this was kept: {now}")
            self.last[ask.slot] = (now, guess.tokens)
        return drafts

    def observe(self, seen) -> None:
        self.drafter.observe(seen)

    def remove(self, slot: int) -> None:
        self.last.pop(slot, None)
        self.drafter.remove(slot)


ASKED: dict[str, dict] = {
    "nothing": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "window": {"repetition_penalty": 1.6, "presence_penalty": 0.7, "penalty_last_n": 5},
    "min_p": {"min_p": 0.08, "top_p": 0.95},
    "bias": {"logit_bias": {2: 1.5, 5: -2.0, 7: -100.0}},
    "min_tokens": {"min_tokens": 9},
    "stop strings": {"stop": ("b3b", "b;2", "-;2-;2", "b;c")},
    "stop ids": {"stop_token_ids": (6, 7, 11)},
    "logprobs": {"logprobs": 3, "report_entropy": True},
    "processed": {"logprobs": 2, "logprobs_mode": "processed", "frequency_penalty": 0.3},
    "n": {"n": 2},
    "dry": {"dry_multiplier": 1.0, "no_repeat_ngram_size": 7, "bad_words": ((0, 1), (3, 3))},
}
BLOCKS = 160
WORLDS: dict[str, dict] = {
    "roomy": {},
    "tight": {"num_blocks": 16},  # two of the requests at a time, or one with its companion
    "chunked": {"max_num_batched_tokens": 9},
    "busy": {"max_num_seqs": 12},
}
RULES = ("auto", "exact", "rejection", "block", "typical")  # auto: the request names none, and gives a seed


@dataclass(frozen=True)
class Case:
    """One combination."""

    drafter: str = "none"
    rule: str = "exact"
    guided: bool = False
    ruled: bool = False
    asked: str = "nothing"
    greedy: bool = False
    world: str = "roomy"

    @property
    def same(self) -> bool:
        """Its tokens must be those of the plain path."""
        return self.drafter == "none" or self.rule in ("auto", "exact") or self.greedy

    @property
    def possible(self) -> bool:
        """Truncations are refused for greedy requests, and rules mean nothing without drafts."""
        return not (self.greedy and self.asked == "min_p") and (self.drafter != "none" or self.rule == "exact")

    @property
    def plain(self) -> Case:
        """The same, one token a step, in all the room that there is."""
        return replace(self, drafter="none", rule="exact", world="roomy")

    def params(self, place: int) -> dict:
        """As the request of this place asks."""
        params = {"max_tokens": LENGTH, "temperature": 0.0 if self.greedy else 0.9, "seed": 40 + place}
        params |= ASKED[self.asked] | {"speculation": Speculation(rule=None if self.rule == "auto" else self.rule)}
        if self.guided:
            params |= {"guidance_scale": 1.6, "negative_prompt": NEGATIVE}
        if self.ruled:
            params["grammar"] = GRAMMAR
        return params


@dataclass
class Outcome:
    """What has become of a case."""

    stories: dict[tuple[str, int, int], Story]
    harness: Harness

    @property
    def told(self) -> dict:
        """All that a client is told, of the requests that were not aborted."""
        return {
            name: (s.tokens, s.logprobs, s.end.reason, s.end.stop_token_id, s.end.cause)
            for name, s in self.stories.items()
            if name[0][0] in "rp"
        }

    @property
    def texts(self) -> list[list[int]]:
        """Prompts and outputs."""
        return [PROMPTS[int(name[0][1])] + s.tokens for name, s in self.stories.items() if name[0][0] in "rp"]


class Books(Harness):
    """A harness that also counts the blocks that are held after a step for more than what is computed, and keeps pairs
    together."""

    idle_blocks = 0

    def step(self) -> None:
        super().step()
        cache = self.engine.cache
        for request in self.engine.requests.values():
            for sequence in request.sequences:
                for member in sequence.pair:
                    self.idle_blocks += len(member.blocks) - cache.blocks_for(member.num_computed)
                    assert member.num_output == sequence.num_output


def world_of(case: Case, grammars: Grammars | None, texts: Texts = (), plainly: bool = False, **options) -> Books:
    """An engine for the case, with its drafter. plainly: not even what is certain is guessed. options: of the
    harness."""
    factory = DRAFTERS[case.drafter](texts)
    harness = Books(
        ScriptedRunner(VOCAB, target, 512, block_size=BLOCK),
        grammars=grammars,
        token_bytes=TOKEN_BYTES,
        eos=EOS,
        drafter=factory and (lambda sampler: Watched(factory(sampler), case.ruled)),
        block_size=BLOCK,
        **{"num_blocks": BLOCKS} | WORLDS[case.world] | options,
    )
    if plainly:
        harness.engine.speculator._collect_forced = lambda *_: []
    return harness


def run(case: Case, grammars: Grammars | None, texts: Texts = (), plainly: bool = False) -> Outcome:
    """Three requests as the case has them and a greedy one that asks for nothing, to their ends; in a busy world,
    others that join and leave meanwhile."""
    harness = world_of(case, grammars, texts, plainly)
    for place, prompt in enumerate(PROMPTS):
        harness.submit(f"r{place}", prompt, **case.params(place))
    harness.submit("p1", PROMPTS[1], max_tokens=LENGTH)
    if case.world == "busy":
        company(harness, case)
    return Outcome(harness.run(), harness)


def company(harness: Harness, case: Case) -> None:
    """Some that join one after another, of all rules; every second one leaves again, by its own will."""
    for at, rule in enumerate(RULES):
        other = replace(case, rule=rule, guided=at % 2 == 0, ruled=False, asked="nothing", greedy=False)
        harness.submit(f"x{at}", PROMPTS[at % 3], **other.params(at + 7))
        for _ in range(2):
            harness.step()
        if at % 2:
            harness.engine.abort(Abort(f"x{at}", 0))


def text_of(tokens: Sequence[int]) -> str:
    return "".join(PIECES[t] for t in tokens if t != EOS)


def logits_of(case: Case, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
    """What the next token is drawn from, before any edit."""
    conditional = target([*prompt, *output])
    if not case.guided:
        return conditional
    unconditional = target([*NEGATIVE, *output])
    return unconditional + torch.tensor(1.6) * (conditional - unconditional)


def check(case: Case, outcome: Outcome) -> None:
    """What holds whatever the rule: each sequence is what its request asks for."""
    for name, story in outcome.stories.items():
        if name[0][0] == "r":
            assert not isinstance(story.end, Failed), story.end
            check_story(case, PROMPTS[int(name[0][1])], story)
    counters = outcome.harness.engine.counters
    assert counters.generated_tokens >= sum(len(s.tokens) for s in outcome.stories.values())
    assert 0 <= counters.accepted_tokens <= counters.drafted_tokens
    speculator = outcome.harness.engine.speculator
    assert (speculator.drafter is None) == (case.drafter == "none")
    assert speculator.drafter is None or not speculator.drafter.wrong, speculator.drafter.wrong


def check_story(case: Case, prompt: Sequence[int], story: Story) -> None:
    tokens, end = story.tokens, story.end
    params = SamplingParams(**case.params(0))
    text, before = text_of(tokens), text_of(tokens[:-1])
    assert 0 < len(tokens) <= LENGTH
    assert EOS not in tokens[:-1]
    if not case.ruled:  # under a grammar a stop id is text where the grammar may not end
        assert not any(t in tokens[params.min_tokens : -1] for t in params.stop_token_ids)
    if not case.ruled and params.min_tokens:
        assert len(tokens) > params.min_tokens
    assert not any(stop in before for stop in params.stop)
    assert end.reason in ("stop", "length")
    if end.reason == "length":
        assert len(tokens) == LENGTH
    else:
        last = tokens[-1]
        stopped = last == EOS or (last in params.stop_token_ids and not (case.ruled and re.fullmatch(WORD, text)))
        assert (end.stop_token_id == last) == stopped
        ended = end.stop_token_id is not None or any(stop in text for stop in params.stop)
        assert ended or (case.ruled and re.fullmatch(WORD, text))
    if case.ruled and end.reason == "stop" and end.stop_token_id in (None, EOS) and not params.stop:
        assert re.fullmatch(WORD, text), text
    if case.asked == "bias":
        assert 7 not in tokens
    if case.asked == "dry":
        assert not {(0, 1), (3, 3)} & set(pairwise(tokens))
    check_logprobs(case, params, prompt, story)


def check_logprobs(case: Case, params: SamplingParams, prompt: Sequence[int], story: Story) -> None:
    if params.logprobs is None:
        assert not story.logprobs
        return
    assert len(story.logprobs) == len(story.tokens)
    if params.logprobs_mode == "processed":
        assert all(entry.logprob > -torch.inf for entry in story.logprobs)
        return
    for place, (token, entry) in enumerate(zip(story.tokens, story.logprobs, strict=True)):
        row = logits_of(case, prompt, story.tokens[:place]).double().log_softmax(0)
        assert abs(entry.logprob - row[token]) < 1e-4
        assert entry.rank == 1 + int((row > row[token]).sum())
        assert abs(entry.entropy + float((row.exp() * row).sum())) < 1e-4
