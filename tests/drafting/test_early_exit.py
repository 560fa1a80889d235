"""The target's first layers as its drafter: right where they are all that the model does, and nothing is left of a
draft pass in the target's cache but what the target's own pass writes there."""

from __future__ import annotations

import random

import pytest
import torch
import transformers

from drafting.tiny import SIZE, VOCAB, llama, load, sampler_for
from tailrace.drafting.base import Drafter, DraftRequest
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.drafting.early_exit import EarlyExit
from tailrace.drafting.pages import Pages
from tailrace.errors import ConfigError
from tailrace.runners.flat_batch import lay_out
from tailrace.runners.transformers import TransformersRunner
from tailrace.sampling import Rows

LAYERS, EXIT = 4, 2
FIELDS = ({"temperature": 0.8}, {"temperature": 0.0}, {"top_p": 0.9, "presence_penalty": 0.5})
LENGTHS = (5, 33, 62)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> TransformersRunner:
    runner = llama(tmp_path_factory.mktemp("target"), layers=LAYERS)
    runner.allocate(32)
    return runner


@pytest.fixture(scope="module")
def idle_target(tmp_path_factory) -> TransformersRunner:
    """A target whose layers from EXIT on add nothing: the first ones are the whole model."""
    folder = tmp_path_factory.mktemp("idle")
    llama(folder, layers=LAYERS)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for layer in model.model.layers[EXIT:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model.save_pretrained(folder)
    runner = load(folder)
    runner.allocate(32)
    return runner


class Engine:
    """As much of one as a drafter sees: sequences in shuffled blocks, computed but for their last token."""

    def __init__(self, runner: TransformersRunner, fields=FIELDS) -> None:
        rng = random.Random(1)
        self.runner, self.tokens = runner, [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]
        self.sampler = sampler_for(*fields, prompts=self.tokens)
        self.pages = Pages(32, SIZE)
        rng.shuffle(self.pages.free)
        for slot, tokens in enumerate(self.tokens):
            self.pages.grow(slot, len(tokens) + 40)
            self.forward(slot, tokens[:-1], 0)

    def forward(self, slot: int, tokens: list[int], first: int) -> torch.Tensor:
        return self.runner.forward(lay_out([tokens], [first], self.pages.make_block_tables([slot]), SIZE)).clone()

    def ask(self, slot: int, count: int, rule="exact") -> DraftRequest:
        tokens = self.tokens[slot]
        return DraftRequest(slot, tokens, count, rule, self.pages.blocks[slot], len(tokens) - 1)

    def drafter(self, layers: int = EXIT) -> EarlyExit:
        return EarlyExit(self.runner, layers, DraftSampler(self.sampler), SIZE)

    def say(self, slot: int) -> int:
        """One plain step."""
        tokens = self.tokens[slot]
        logits = self.forward(slot, tokens[-1:], len(tokens) - 1)
        tokens += self.sampler(logits, Rows.plain([slot], [0], [len(tokens)])).token_ids[0].tolist()
        self.sampler.slots.commit([slot], [tokens[-1:]])
        return tokens[-1]

    def memory(self) -> list[torch.Tensor]:
        """Bits of every layer's keys and values."""
        caches = self.runner.paged.layers.caches
        return [torch.cat([c.keys.flatten(), c.values.flatten()]).view(torch.int32).clone() for c in caches]


def test_layers_that_are_the_whole_model_are_always_right(idle_target):
    """Under `exact`: what plain sampling goes on to say is what was drafted, step after step."""
    engine, rng = Engine(idle_target), random.Random(2)
    drafter = engine.drafter()
    for _ in range(5):
        asks = [engine.ask(slot, rng.randint(1, 6)) for slot in rng.sample(range(3), rng.randint(1, 3))]
        for ask, draft in zip(asks, drafter.draft(asks), strict=True):
            assert draft.tokens == [engine.say(ask.slot) for _ in range(ask.count)]


def test_fewer_layers_are_another_model(target):
    engine = Engine(target)
    (draft,) = engine.drafter().draft([engine.ask(0, 12)])
    assert draft.tokens != [engine.say(0) for _ in range(12)]


def test_what_a_draft_pass_leaves_is_the_targets_own(target):
    """Its layers' keys and values are bit for bit those that verification writes; the other layers' are not touched."""
    engine, count = Engine(target), 5
    before = engine.memory()
    asks = [engine.ask(slot, count) for slot in range(3)]
    drafts = engine.drafter().draft(asks)
    drafted = engine.memory()
    for ask, draft in zip(asks, drafts, strict=True):
        engine.forward(ask.slot, [ask.tokens[-1], *draft.tokens[:-1]], ask.computed)
    verified = engine.memory()
    for layer in range(LAYERS):
        assert torch.equal(drafted[layer], verified[layer] if layer < EXIT else before[layer])
    assert not torch.equal(before[0], drafted[0])


def test_the_targets_own_pass_is_not_affected(target):
    """The same logits and the same memory after verification, whether anything was drafted or not."""
    plain = Engine(target)
    guesses = [[7, 8, 9, 10]] * 3
    expected = [plain.forward(slot, [plain.tokens[slot][-1], *guesses[slot]], LENGTHS[slot] - 1) for slot in range(3)]
    expected_memory = plain.memory()
    speculating = Engine(target)
    speculating.drafter().draft([speculating.ask(slot, 4) for slot in range(3)])
    for slot in range(3):
        got = speculating.forward(slot, [speculating.tokens[slot][-1], *guesses[slot]], LENGTHS[slot] - 1)
        assert torch.equal(got, expected[slot])
    assert all(torch.equal(a, b) for a, b in zip(speculating.memory(), expected_memory, strict=True))


def test_together_is_alone(target):
    engine = Engine(target, ({"temperature": 0.8}, {"temperature": 0.0}, {"top_p": 0.9}))
    drafter = engine.drafter()
    asks = [engine.ask(0, 6), engine.ask(1, 2, "block"), engine.ask(2, 4, "rejection")]
    for ask, draft in zip(asks, drafter.draft(asks), strict=True):
        (alone,) = drafter.draft([ask])
        assert draft.tokens == alone.tokens
        assert len(draft.tokens) == ask.count
        assert (draft.q is None) == (ask.rule != "rejection")
        assert alone.q is None or torch.equal(draft.q, alone.q)
    assert drafter.draft([]) == []


@pytest.mark.parametrize("layers", [0, LAYERS, -1])
def test_layers_out_of_range(target, layers):
    with pytest.raises(ConfigError, match=f"layers must be an integer in \\[1, {LAYERS - 1}\\], got {layers}"):
        Engine(target).drafter(layers)


def test_it_is_a_drafter(target):
    drafter = Engine(target).drafter()
    assert isinstance(drafter, Drafter)
    assert drafter.captures == ()
    drafter.remove(99)
