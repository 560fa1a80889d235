"""Training of an EAGLE head: the trained head computes what the drafter computes, the head learns, and the same command
writes the same file."""

from __future__ import annotations

import random

import pytest
import torch
from tools.train_eagle import head, training
from tools.train_eagle.__main__ import arguments
from tools.train_eagle.corpus import Sample, answered, engine_for
from tools.train_eagle.questions import taken_apart

from drafting.heads import HIDDEN, LAYERS, VOCAB, Argmax, save_target
from tailrace.drafting.base import DraftRequest, TargetStates
from tailrace.drafting.chain import ChainDrafter
from tailrace.drafting.eagle_heads import load_head

LAYER_IDS = (1, LAYERS // 2 - 1, LAYERS - 4)
KNOWN = 40  # of the target's tokens


@pytest.fixture(scope="module")
def runner_and_samples(tmp_path_factory):
    folder = save_target(tmp_path_factory.mktemp("target"))
    engine = engine_for(folder, "float32", 1, 8)
    rng = random.Random(4)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(3, 20))] for _ in range(24)]
    samples = answered(engine, prompts, 30, 5, LAYER_IDS)
    yield folder, engine.runner, prompts, samples
    engine.close()


def options(*more: str):
    flags = (
        "unused",
        "--dtype",
        "float32",
        "--batch",
        "4",
        "--depth",
        "3",
        "--steps",
        "60",
        "--vocab",
        str(KNOWN),
        "--threads",
        "1",
    )
    return arguments([*flags, *more])


@pytest.mark.long
def test_states_are_those_of_every_position(runner_and_samples):
    folder, _, prompts, samples = runner_and_samples
    assert len(samples) == len(prompts)
    for prompt in prompts:
        [sample] = [s for s in samples if s.tokens[: len(prompt)].tolist() == prompt]
        count = len(sample.last)
        assert len(sample.tokens) == count + 1 == len(prompt) + 29  # what is drawn last is never computed
        assert sample.states.shape == (count, 3 * HIDDEN)
    again = engine_for(folder, "float32", 1, 3)  # others beside them, another order
    for a, b in zip(samples, answered(again, prompts, 30, 5, LAYER_IDS), strict=True):
        assert torch.equal(a.tokens, b.tokens)
        assert torch.equal(a.states, b.states)
        assert torch.equal(a.last, b.last)
    again.close()


@pytest.mark.long
def test_a_head_learns_and_its_file_is_the_same_again(runner_and_samples, tmp_path):
    folder, runner, _, samples = runner_and_samples
    ends = head.ends_of(runner)
    config = head.configured(folder, LAYER_IDS, KNOWN)
    files = []
    for turn, seed in enumerate((1, 1, 2)):
        weights, losses, agreement = training.trained(config, samples, ends, options("--seed", str(seed)))
        training.save(tmp_path / str(turn), config, weights)
        files.append((tmp_path / str(turn) / "model.safetensors").read_bytes())
        assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
        assert len(agreement) == 3
        assert all(0.0 <= share <= 1.0 for share in agreement)
    assert files[0] == files[1] != files[2]
    load_head(tmp_path / "0", runner)


def test_what_is_trained_is_what_the_drafter_computes(runner_and_samples, tmp_path):
    folder, runner, _, samples = runner_and_samples
    config = head.configured(folder, LAYER_IDS, KNOWN)
    ends, depth = head.ends_of(runner), 4
    generator = torch.Generator().manual_seed(3)
    ids = torch.randperm(VOCAB, generator=generator)[:KNOWN].sort().values
    weights = head.fresh(config, 3, ends.head[ids], generator)
    weights = {
        name: (w + 0.1 * torch.randn(w.shape, generator=generator)).bfloat16().float() for name, w in weights.items()
    }
    training.save(tmp_path, config, weights | {"d2t": ids - torch.arange(KNOWN)})
    drafter = ChainDrafter(load_head(tmp_path, runner), Argmax(), 16, 16)
    for sample in samples[:4]:
        tokens, states, count = sample.tokens.tolist(), sample.states.float(), len(sample.last)
        drafter.observe(TargetStates([0], [tokens], [0], [count], [0], states))
        [draft] = drafter.draft([DraftRequest(0, tokens, depth)])
        drafter.remove(0)
        whole = torch.tensor([*tokens, *draft.tokens[:-1]])
        states = torch.nn.functional.pad(states, (0, 0, 0, depth - 1), value=7.0)  # which nothing may look at
        with torch.no_grad():
            found = list(head.TrainedHead(config)(weights, ends.embedding[whole[1:]][None], states[None], depth))
        for s, shown in enumerate(drafter.draft_sampler.shown[0]):
            torch.testing.assert_close(shown[ids], found[s][0, count - 1 + s], rtol=2e-4, atol=2e-4)


def test_the_targets_distributions_are_what_is_learnt(runner_and_samples):
    """Of what the head knows the target's own probabilities, at the position after the entry."""
    _, runner, _, samples = runner_and_samples
    ends, ids = head.ends_of(runner), torch.arange(0, VOCAB, 2)
    chosen = sorted(samples[:3], key=lambda s: len(s.last))
    to = training.lesson(chosen, [training.said(s, ends) for s in chosen], ids, ends)
    for row, sample in enumerate(chosen):
        logits = runner.head(sample.last.to(runner.dtype)).float()
        count = len(logits) - 1
        torch.testing.assert_close(to.wanted[row, :count], logits.softmax(-1)[1:, ids], rtol=1e-3, atol=1e-5)
        best = logits[1:].argmax(-1)
        assert torch.equal(to.likeliest[row, :count], torch.where(best % 2 == 0, best // 2, -1))
        assert to.valid[row].sum() == count
        assert torch.equal(to.embedded[row, :count], ends.embedding[sample.tokens[1:-1]])


def test_held_out_samples_are_not_trained_on(runner_and_samples):
    folder, runner, _, samples = runner_and_samples
    ends = head.ends_of(runner)
    config = head.configured(folder, LAYER_IDS, KNOWN)
    args = options("--steps", "5")
    before = training.trained(config, samples, ends, args)[0]
    other = list(samples)
    other[0] = Sample(samples[0].tokens.flip(0), samples[0].states.flip(0), samples[0].last.flip(0))
    after = training.trained(config, other, ends, args)[0]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_sources_are_taken_apart():
    prose = "A text that says so much that it becomes a passage. " * 6
    body = "        x +\n" * 40
    source = f'"""{prose}"""\n\n\ndef f(x):\n    """Short."""\n    return (\n{body}        1\n    )\n'
    docstrings, functions = taken_apart(source)
    assert docstrings == [prose.strip()]
    assert functions == [source[source.index("def f") :]]
    assert taken_apart("def f(:") == ([], [])


@pytest.mark.parametrize("flag", ["--steps", "--answers", "--depth"])
def test_what_is_below_one_is_refused(flag, capsys):
    with pytest.raises(SystemExit):
        arguments(["unused", flag, "0"])
    assert "must be at least 1" in capsys.readouterr().err
