"""Guided logits are those of two passes of transformers' model, one with the prompt and one with the negative prompt,
in float32, through our paged cache: whole prompts, chunks, drafts and preemption alike. Greedy guided texts are those
of transformers' own processor."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers
from transformers import LogitsProcessorList, UnbatchedClassifierFreeGuidanceLogitsProcessor

from drafting import tiny
from tailrace.config import CacheConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.drafting.model import DraftModel
from tailrace.drafting.ngram import NGram
from tailrace.engine.engine import Engine
from tailrace.kernels.rows import Rows
from tailrace.params import SamplingParams
from tailrace.runners.base import Batch, ModelRunner
from tailrace.sampling import Sampled, Sampler
from tailrace.sampling.backends.base import Pending
from tailrace.sampling.guidance import raw_row
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Abort, Finished, ModelInfo, Submit, Tokens

Pair = tuple[list[int], tuple[int, ...]]  # a prompt and a negative prompt

NUM_TOKENS = 12
BOUND = 1e-4  # of a logit: absolute for the small model, whose logits are below 10, and else relative to the largest
LENGTHS = (
    (9, 5),
    (12, 12),
    (30, 41),
    (4, 0),
)  # of prompts and negative prompts; 0: the default, the prompt's last token
TEXTS = (
    ("The old mill by the river", "Nothing here"),
    ("A list of colours: red, green, blue, red, green,", "A list of animals: cat, dog, cat, dog,"),
    ("Once upon a time", None),
)


class Listener:
    """The engine's sampler, and the logits that it was given."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.heard: dict[tuple[int, int], torch.Tensor] = {}  # (key, position) → what the token there was drawn from

    def begin(self, logits: torch.Tensor, rows: Rows) -> Pending:
        pending = self.sampler.begin(logits, rows)
        return Pending(pending.token_ids, lambda: self._hear(logits, rows, pending.wait()))

    def _hear(self, logits: torch.Tensor, rows: Rows, sampled: Sampled) -> Sampled:
        for start, count in zip(rows.start.tolist(), sampled.num_tokens.tolist(), strict=False):
            for row in range(start, start + count):
                key = self.sampler.slots[int(rows.slot[row])].key
                self.heard[key, int(rows.position[row])] = raw_row(logits, rows, row).clone()
        return sampled


class Meter:
    """The runner, and what it has computed."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.steps, self.tokens = runner, 0, 0

    def __getattr__(self, name: str):
        return getattr(self.runner, name)

    def forward(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        self.tokens += batch.token_ids.numel()
        return self.runner.forward(batch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small random model's."""
    made = tmp_path_factory.mktemp("llama")
    tiny.llama(made, layers=3, seed=3)
    return made


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return tiny.load(folder)


@pytest.fixture(scope="module")
def reference(folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts() -> list[Pair]:
    rng = random.Random(2)
    ids = [[rng.randrange(90) for _ in range(length)] for pair in LENGTHS for length in pair]
    return [(one, tuple(other)) for one, other in zip(ids[::2], ids[1::2], strict=True)]


def engine_of(runner: ModelRunner, *, drafter=None, **limits) -> Engine:
    cache = CacheConfig(num_blocks=limits.pop("num_blocks", 128))
    scheduler = SchedulerConfig(**{"max_num_seqs": 16, "max_num_batched_tokens": 256} | limits)
    speculation = SpeculationConfig(adaptive=False)
    engine = Engine(
        Meter(runner),
        ModelInfo("small", runner.vocab_size, 256, [0]),
        cache,
        scheduler,
        speculation=speculation,
        drafter=drafter,
    )
    engine.steps.sampler = Listener(engine.steps.sampler)
    return engine


def run(engine: Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for message in engine.step().get(b"", []):
            if isinstance(message, Tokens):
                tokens.setdefault(message.id, []).extend(message.token_ids)
            else:
                assert isinstance(message, Finished), message
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert len(engine.lifecycle.free_slots) == engine.limits.scheduler.max_num_seqs
    return tokens


def ask(scale: float, negative: tuple[int, ...], **fields) -> SamplingParams:
    fixed = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "seed": 1}
    return SamplingParams(guidance_scale=scale, negative_prompt=negative if scale != 1.0 else (), **fixed | fields)


def two_passes(model, prompt: list[int], negative: tuple[int, ...], output: list[int], scale: float) -> torch.Tensor:
    """What each token of the output was to be drawn from, [len(output), V]: whole sequences, no cache."""
    with torch.inference_mode():
        rows = [model(torch.tensor([[*ids, *output]])).logits[0, len(ids) - 1 : -1] for ids in (prompt, negative)]
    return rows[1] + scale * (rows[0] - rows[1])


WORLDS = {
    "together": {},
    "chunks": {"max_num_batched_tokens": 7},
    "preempted": {"num_blocks": 8},
    "drafts": {"drafter": "the model itself, unguided"},
}


def both(
    runner: ModelRunner, model, prompts: list[Pair], scale: float, **world
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What each request's tokens were drawn from: by the engine, by transformers."""
    engine = engine_of(runner, **world)
    for place, (prompt, negative) in enumerate(prompts):
        engine.submit(Submit(f"r{place}", 0, prompt, ask(scale, negative, temperature=0.8, seed=place)))
    keys = [request.sequences[0].key for request in engine.requests.values()]
    said, found = run(engine), []
    for place, (prompt, negative) in enumerate(prompts):
        ours = [engine.steps.sampler.heard[keys[place], len(prompt) + i] for i in range(NUM_TOKENS)]
        theirs = two_passes(model, prompt, negative or tuple(prompt[-1:]), said[f"r{place}"], scale)
        found.append((torch.stack(ours), theirs))
    assert engine.counters.preemptions or world.get("num_blocks") is None
    assert engine.counters.accepted_tokens or world.get("drafter") is None
    return found


@pytest.mark.few(6)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("scale", [0.0, 0.6, 1.5, 3.0])
def test_guided_logits_are_those_of_two_passes(runner, folder, reference, prompts, scale, world):
    limits = dict(WORLDS[world])
    if "drafter" in limits:
        limits["drafter"] = lambda sampler: DraftModel(tiny.load(folder), DraftSampler(sampler), 64, 16)
    for ours, theirs in both(runner, reference, prompts, scale, **limits):
        assert float((ours - theirs).abs().max()) < BOUND


@pytest.mark.long
@pytest.mark.model
def test_guided_logits_of_the_default_model(model_folder, reference_of, runner_of):
    """Its logits reach 40, and thirty layers in float32 add up rounding of their own, without guidance too: the bound
    is relative."""
    encode = Tokenizer.load(model_folder).encode
    prompts = [(encode(text), tuple(encode(other)) if other else ()) for text, other in TEXTS]
    for ours, theirs in both(runner_of("float32"), reference_of("float32"), prompts, 1.5):
        assert float((ours - theirs).abs().max()) < BOUND * float(theirs.abs().max())


def test_the_bound_is_seen(reference, prompts):
    """The negative control: a scale that is off by a hundredth, or a companion one token short, is far outside of
    it."""
    (prompt, negative), output = prompts[0], [10, 20, 30]
    right = two_passes(reference, prompt, negative, output, 1.5)
    for wrong in (
        two_passes(reference, prompt, negative, output, 1.51),
        two_passes(reference, prompt, negative[1:], output, 1.5),
    ):
        assert (right - wrong).abs().max() > 100 * BOUND


def test_scale_1_is_no_guidance_token_for_token(runner, prompts):
    said = []
    for fields in ({}, {"guidance_scale": 1.0}):
        engine = engine_of(runner)
        for place, (prompt, _) in enumerate(prompts):
            params = SamplingParams(temperature=0.8, top_p=0.95, seed=place, max_tokens=NUM_TOKENS, **fields)
            engine.submit(Submit(f"r{place}", 0, prompt, params))
        said.append((run(engine), engine.runner.tokens, engine.runner.steps))
    assert said[0] == said[1]


def test_a_scale_that_almost_is_1_says_the_same(runner, prompts):
    """And goes the way of pairs."""
    said = []
    for scale in (1.0, 1.0 + 1e-6):
        engine = engine_of(runner)
        for place, (prompt, negative) in enumerate(prompts):
            engine.submit(Submit(f"r{place}", 0, prompt, ask(scale, negative, temperature=0.8, seed=place)))
        said.append(run(engine))
    assert said[0] == said[1]


def test_a_pair_costs_twice_the_tokens_and_no_step_more(runner, prompts):
    """With a negative prompt of the prompt's own length; and nobody pays for a neighbour's."""
    costs = []
    for scale in (1.0, 1.5):
        engine = engine_of(runner)
        for place, (prompt, _) in enumerate(prompts):
            engine.submit(Submit(f"r{place}", 0, prompt, ask(scale, tuple(reversed(prompt)), temperature=0.0)))
        run(engine)
        costs.append((engine.runner.tokens, engine.runner.steps))
    (plain, steps), (guided, guided_steps) = costs
    assert guided_steps == steps
    assert 1.95 * plain < guided <= 2.05 * plain

    engine = engine_of(runner)
    for place, (prompt, _) in enumerate(prompts):
        params = ask(1.5 if place == 0 else 1.0, tuple(reversed(prompt)), temperature=0.0)
        engine.submit(Submit(f"r{place}", 0, prompt, params))
    run(engine)
    assert engine.runner.steps == steps
    assert engine.runner.tokens == plain + len(prompts[0][0]) + NUM_TOKENS - 1


@pytest.mark.parametrize("steps", range(9))
def test_aborts_of_pairs_give_everything_back(runner, prompts, steps):
    """Prompts in chunks, then tokens, a neighbour that goes on to its end."""
    engine = engine_of(runner, max_num_batched_tokens=9, drafter=lambda sampler: NGram())
    engine.submit(Submit("stays", 0, prompts[1][0], ask(1.5, prompts[1][1], temperature=0.0)))
    engine.submit(Submit("goes", 0, prompts[2][0], ask(1.5, prompts[2][1], temperature=0.7, n=2)))
    for _ in range(steps):
        engine.step()
    engine.abort(Abort("goes", 0))
    alone = engine.stats()
    assert alone.running + alone.waiting == 1
    while engine.has_work:
        engine.step()
    assert engine.stats().blocks_used == 0
    assert len(engine.lifecycle.free_slots) == 16
    assert not engine.requests


@pytest.mark.parametrize("scale", [1.5, 2.5])
def test_greedy_texts_are_those_of_transformers(runner, reference, prompts, scale):
    """Its processor takes log-probabilities where we take logits, which moves each row by a constant alone; its default
    for the negative prompt is ours, the prompt's last token."""
    engine = engine_of(runner)
    for place, (prompt, negative) in enumerate(prompts):
        engine.submit(Submit(f"r{place}", 0, prompt, ask(scale, negative, temperature=0.0)))
    said = run(engine)
    for place, (prompt, negative) in enumerate(prompts):
        ids = torch.tensor([prompt])
        other = torch.tensor([negative]) if negative else None
        processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, reference, unconditional_ids=other)
        with torch.inference_mode():
            out = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
                logits_processor=LogitsProcessorList([processor]),
            )
        assert said[f"r{place}"] == out[0, len(prompt) :].tolist()
