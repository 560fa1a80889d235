"""Verification, exactly: the law of what comes out, by running the reference once for every way its random decisions
can fall.

The model's logits, the drafter's distributions and the grammar's masks all depend on the text so far, and differ at
every position. What a step emits is drawn on to K + 1 tokens by the oracle; a lossless rule then has the plain law.
That the kernels take the same tokens as the reference is test_mixed.py's business; that the streams of noise are
independent, test_verify.py's.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from oracles import brute
from oracles.paths import Choices, Uniform, law_of
from tailrace.kernels.program import mask_of
from tailrace.kernels.rows import Rule
from tailrace.params import SamplingParams
from tailrace.sampling import Slots, reference, verify
from tailrace.sampling.slot import Slot

PROMPT, OUTPUT = [1, 0], [2]
PARAMS: dict[str, dict] = {
    "plain": {},
    "penalties": {"presence_penalty": 0.9, "repetition_penalty": 1.7, "frequency_penalty": 0.4, "temperature": 0.8},
    "window": {"presence_penalty": 1.5, "penalty_last_n": 2},
    "truncated": {"temperature": 0.7, "top_p": 0.8, "frequency_penalty": 1.0},
    "moving": {"bad_words": ((1, 0),), "dry_multiplier": 1.0, "dry_allowed_length": 1},
}
Text = tuple[int, ...]


class World:
    """V tokens, K drafts; a model, a drafter and a grammar, each a function of the text so far."""

    def __init__(self, vocab: int, drafts: int, params: dict, masked: bool) -> None:
        self.vocab, self.drafts, self.params, self.masked = vocab, drafts, params, masked

    def random(self, what: str, text: Text) -> list[float]:
        rng = random.Random(f"{what} {text}")
        return [rng.gauss(0.0, 1.0) for _ in range(self.vocab)]

    def logits(self, text: Text) -> list[float]:
        return self.random("model", text)

    def proposal(self, text: Text) -> list[float]:
        p = brute.softmax(dict(enumerate(self.random("drafter", text))))
        return [p[i] for i in range(self.vocab)]

    def allowed(self, text: Text) -> list[int]:
        if not self.masked:
            return list(range(self.vocab))
        marks = self.random("grammar", text)
        return [i for i in range(self.vocab) if marks[i] > -0.4 or i == len(text) % self.vocab]

    def plain(self, text: Text) -> dict[int, float]:
        """What plain sampling draws after `text`."""
        allowed = self.allowed(text)
        row = [value if i in allowed else float("-inf") for i, value in enumerate(self.logits(text))]
        return brute.distribution(row, brute.Ask(**self.params), PROMPT, [*OUTPUT, *text])

    def plain_law(self) -> dict[Text, float]:
        law: dict[Text, float] = {(): 1.0}
        for _ in range(self.drafts + 1):
            law = {(*text, i): mass * p for text, mass in law.items() for i, p in self.plain(text).items()}
        return law


def emitted(
    world: World, rule: Rule, dense: bool, monkeypatch, *, shift_q: int = 0, shift_mask: int = 0
) -> dict[Text, float]:
    """The law of what one step emits; the drafts are drawn from the proposals, or the likeliest of each."""
    slots = Slots(1, world.vocab)
    slots.add(0, SamplingParams(**world.params), key=3, prompt=PROMPT, output=OUTPUT)

    def run(choices: Choices) -> Text:
        monkeypatch.setattr(verify.kernels, "uniform", lambda *_: Uniform(choices))
        monkeypatch.setattr(reference, "draw_token", lambda s, *_: int(s.ids[choices.pick(s.probabilities().tolist())]))
        text: Text = ()
        for _ in range(world.drafts):
            q = world.proposal(text)
            text = (*text, choices.pick(q) if dense else q.index(max(q)))
        texts = [text[:j] for j in range(world.drafts + 1)]
        q = torch.tensor([world.proposal(t) for t in texts]).roll(shift_q, 0) if dense else None
        masks = [mask_of(world.allowed(t), world.vocab) if world.masked else None for t in texts]
        masks = masks[-shift_mask:] + masks[:-shift_mask]
        logits = [torch.tensor(world.logits(t)) for t in texts]
        drafts = verify.Drafts(len(PROMPT) + len(OUTPUT), text, q, rule)
        return tuple(verify.verify_request(verify.DraftRows(logits, slots[0], drafts, masks))[0])

    return law_of(run)


def continued(world: World, law: dict[Text, float]) -> dict[Text, float]:
    """Drawn on to K + 1 tokens by the oracle."""
    out: dict[Text, float] = {}
    waiting = list(law.items())
    while waiting:
        text, mass = waiting.pop()
        if len(text) == world.drafts + 1:
            out[text] = out.get(text, 0.0) + mass
        else:
            waiting += [((*text, i), mass * p) for i, p in world.plain(text).items()]
    return out


def distance(a: dict[Text, float], b: dict[Text, float]) -> float:
    """Total variation."""
    return sum(abs(a.get(text, 0.0) - b.get(text, 0.0)) for text in {*a, *b}) / 2


def error(world: World, rule: Rule, dense: bool, monkeypatch, **fault) -> float:
    return distance(continued(world, emitted(world, rule, dense, monkeypatch, **fault)), world.plain_law())


LOSSLESS = [
    ("exact", True),
    ("rejection", True),
    ("block", True),
    ("exact", False),
    ("rejection", False),
    ("block", False),
]


@pytest.mark.few(10)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize(("rule", "dense"), LOSSLESS)
def test_the_law_is_that_of_plain_sampling(rule, dense, name, masked, monkeypatch):
    world = World(4 if dense else 5, 2 if dense else 3, PARAMS[name], masked)
    assert error(world, rule, dense, monkeypatch) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize(("rule", "dense"), LOSSLESS)
def test_the_law_of_three_drafts_of_six_tokens(rule, dense, name, monkeypatch):
    assert error(World(6, 3, PARAMS[name], True), rule, dense, monkeypatch) < 1e-6


@pytest.mark.long
def test_block_verification_accepts_more(monkeypatch):
    world = World(3, 3, {}, False)
    mean = {
        rule: sum(len(text) * mass for text, mass in emitted(world, rule, True, monkeypatch).items())
        for rule in ("exact", "rejection", "block")
    }
    assert mean["block"] > mean["rejection"] + 1e-3 > mean["exact"] + 1e-3


@pytest.mark.parametrize("name", ["plain", "penalties"])
def test_typical_accepts_by_its_threshold_and_else_draws_plainly(name, monkeypatch):
    world = World(5, 3, PARAMS[name], False)

    def accept(text: Text, draft: int) -> float:
        p = world.plain(text)
        if p.get(draft, 0.0) > min(0.09, 0.3 * math.exp(-brute.entropy(p))):
            return 1.0
        return p.get(draft, 0.0)

    wanted: dict[Text, float] = {}
    text: Text = ()
    reached = 1.0
    for j in range(world.drafts + 1):
        p, q = world.plain(text), world.proposal(text)
        draft = q.index(max(q)) if j < world.drafts else -1
        stays = accept(text, draft) if j < world.drafts else 0.0
        for i, mass in p.items():
            if i != draft and stays < 1.0:
                wanted[(*text, i)] = reached * mass
        reached *= stays
        text = (*text, draft)
    got = emitted(world, "typical", False, monkeypatch)
    assert distance(got, {t: m for t, m in wanted.items() if m > 0}) < 1e-6
    assert error(world, "typical", False, monkeypatch) > 1e-2  # lossy, and the check sees it


# ---- planted faults

FAULTS = {"proposals of the next row": {"shift_q": -1}, "proposals of the row before": {"shift_q": 1}}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_shifted_proposal_is_seen(rule, fault, monkeypatch):
    assert error(World(4, 2, {}, False), rule, True, monkeypatch, **FAULTS[fault]) > 1e-3


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("rule", ["exact", "rejection", "block"])
def test_a_shifted_mask_is_seen(rule, shift, monkeypatch):
    assert error(World(4, 2, {}, True), rule, True, monkeypatch, shift_mask=shift) > 1e-3


@pytest.mark.parametrize("rule", ["exact", "rejection", "block"])
def test_penalties_that_do_not_see_the_drafts_are_seen(rule, monkeypatch):
    monkeypatch.setattr(Slot, "extend", lambda slot, tokens: None)
    monkeypatch.setattr(Slot, "pop", lambda slot: None)
    assert error(World(4, 2, PARAMS["penalties"], False), rule, True, monkeypatch) > 1e-3


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_accepting_everything_is_seen(rule, monkeypatch):
    monkeypatch.setattr(Uniform, "__lt__", lambda u, bound: True)
    monkeypatch.setattr(Uniform, "__le__", lambda u, bound: True)
    assert error(World(4, 2, {}, False), rule, True, monkeypatch) > 1e-3


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_residual_that_is_the_whole_target_is_seen(rule, monkeypatch):
    rest = verify.compute_remainder
    monkeypatch.setattr(verify, "compute_remainder", lambda p, q, scale: rest(p, torch.zeros_like(p), 1.0))
    assert error(World(4, 2, {}, False), rule, True, monkeypatch) > 1e-3


@pytest.mark.long
def test_a_residual_without_its_scale_is_seen(monkeypatch):
    rest = verify.compute_remainder
    monkeypatch.setattr(verify, "compute_remainder", lambda p, q, scale: rest(p, q, 1.0))
    assert error(World(4, 3, {}, False), "block", True, monkeypatch) > 1e-3


def test_all_masses_add_up(monkeypatch):
    law = emitted(World(3, 2, {}, True), "block", True, monkeypatch)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)
    assert all(1 <= len(text) <= 3 for text in law)
    assert set(itertools.chain.from_iterable(law)) <= {0, 1, 2}
