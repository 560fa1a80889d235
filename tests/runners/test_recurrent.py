"""States in a flat batch: a sequence's results are the same bits whatever stands beside it, however its prompt is cut,
and wherever its ring begins; MXFP4 checkpoints."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils.quantization_config import Mxfp4Config

from runners.tiny_models import MODELS, VOCAB, save
from tailrace.config import ModelConfig
from tailrace.kernels import Walk
from tailrace.runners import load_runner
from tailrace.runners.flat_batch import FlatTokens
from tailrace.runners.recorded import RecordedSteps
from tailrace.runners.recurrent import convolve
from tailrace.runners.states import RecurrentLayer, RecurrentState, join_pairs
from tailrace.runners.transformers import TransformersRunner

SIZE = 16
Part = tuple[int, int, int]  # sequence, first position, end


class Sequences:
    """Three sequences of a model, computed in any parts."""

    def __init__(self, folder: Path) -> None:
        runner = load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=SIZE)
        assert isinstance(runner, TransformersRunner)
        self.runner = runner
        self.ids = torch.randint(1, VOCAB, (3, 60), generator=torch.Generator().manual_seed(5))
        self.tables = torch.randperm(12, generator=torch.Generator().manual_seed(3)).view(3, 4).to(torch.int32)

    def begin(self, rows: int = 2) -> Sequences:
        self.runner.allocate_states(5, rows, 0)
        for memory in self.runner.paged.states.memory.values():
            memory.fill_(float("nan"))  # what an old owner left must not matter
        self.runner.allocate(12)
        return self

    def step(self, *parts: Part) -> list[torch.Tensor]:
        """Logits of all tokens of each part. Sequence i has slot 4 − i."""
        flat = FlatTokens()
        for sequence, first, end in parts:
            flat.add(self.ids[sequence, first:end].tolist(), end)
        flat.wanted = list(range(len(flat.token_ids)))
        owners = [part[0] for part in parts]
        batch = flat.make_batch(self.tables[owners].numpy(), SIZE, slots=[4 - owner for owner in owners])
        return list(self.runner.forward(batch).clone().split([end - first for _, first, end in parts]))


KINDS = ["qwen3.5", "lfm2", "mamba2", "mamba", "minimax", "gemma3 text"]
WITH_EXPERTS = ["gpt-oss", "deepseek-v3", "llama4 text", "nemotron h", "jamba", "kimi linear", "longcat flash"]


@pytest.fixture(scope="module", params=[*KINDS, *WITH_EXPERTS])
def sequences(request, tmp_path_factory) -> Sequences:
    return Sequences(save(request.param, tmp_path_factory.mktemp("model")))


@pytest.mark.few(3)
def test_neighbours_and_cuts_do_not_matter(sequences):
    [alone] = sequences.begin().step((0, 0, 50))
    _, beside = sequences.begin().step((1, 0, 33), (0, 0, 50))
    torch.testing.assert_close(beside, alone, atol=0, rtol=0)
    sequences.begin()
    first, _ = sequences.step((0, 0, 17), (2, 0, 5))
    _, second = sequences.step((2, 5, 6), (0, 17, 18))
    _, third, _ = sequences.step((1, 0, 40), (0, 18, 50), (2, 6, 7))
    torch.testing.assert_close(torch.cat([first, second, third]), alone, atol=0, rtol=0)


@pytest.mark.few(3)
@pytest.mark.parametrize("rows", [2, 5])
def test_going_back_leaves_no_trace(sequences, rows):
    """By as many tokens as the ring has entries, less one, after other tokens were computed in their place."""
    [alone] = sequences.begin().step((0, 0, 50))
    sequences.begin(rows)
    sequences.step((0, 0, 30))
    kept, back = sequences.ids[0].clone(), rows - 1
    sequences.ids[0, 30:] = sequences.ids[0, 30:].flip(0)
    sequences.step((0, 30, 30 + back))
    sequences.ids[0] = kept
    [again] = sequences.step((0, 30, 50))
    torch.testing.assert_close(again, alone[30:], atol=0, rtol=0)
    [before] = sequences.step((0, 50 - back, 50))
    torch.testing.assert_close(before, alone[50 - back :], atol=0, rtol=0)


@pytest.mark.few(2)
def test_copied_states_go_on_alone(sequences):
    [alone] = sequences.begin().step((0, 0, 50))
    sequences.begin()
    sequences.step((0, 0, 30), (1, 0, 9))
    sequences.runner.copy_states([(2 * 4, 2 * 3), (2 * 4 + 1, 2 * 3 + 1)])
    sequences.runner.copy_blocks(
        [(int(a), int(b)) for a, b in zip(sequences.tables[0], sequences.tables[1], strict=True)]
    )
    sequences.step((0, 30, 31))
    sequences.ids[1] = sequences.ids[0]
    [copy] = sequences.step((1, 30, 50))
    torch.testing.assert_close(copy, alone[30:], atol=0, rtol=0)


@pytest.mark.few(2)
def test_recorded_steps_have_the_models_bits(sequences):
    """In any order of the sequences, from their first token on, with slots that change their owners."""
    runner = sequences.begin(3).runner
    if not isinstance(runner.decode_steps, RecordedSteps):
        pytest.skip("its experts are called by the numbers of their tokens")
    place = {0: 0, 1: 7, 2: 20}
    sequences.step((1, 0, 7), (2, 0, 20))
    for which in ([0, 1, 2], [2, 0], [1], [1, 2, 0], [0, 1, 2], [2, 1]):
        parts = [(i, place[i], place[i] + 1) for i in which]
        recorded = sequences.step(*parts)
        steps, runner.decode_steps = runner.decode_steps, None
        plain = sequences.step(*parts)
        runner.decode_steps = steps
        assert all(map(torch.equal, recorded, plain))
        place |= {i: place[i] + 1 for i in which}
    assert sorted(runner.decode_steps.steps) == [1, 2, 3]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "minimax"])
def test_models_with_states_have_recorded_steps(name, tmp_path, monkeypatch):
    """The planted fault: a walk that stays where it was recorded."""
    sequences = Sequences(save(name, tmp_path)).begin()
    assert isinstance(sequences.runner.decode_steps, RecordedSteps)
    [alone] = sequences.step((0, 0, 30))
    together = [sequences.step((0, at, at + 1))[0] for at in range(30)]
    assert torch.equal(torch.cat(together), alone)
    monkeypatch.setattr(Walk, "move", lambda *_: None)
    stays = [sequences.step((0, at, at + 1))[0] for at in range(30)]
    assert torch.equal(torch.cat(stays), alone) == (name == "gemma3 text")  # which has no state


def test_a_walk_moves_to_places_that_exist():
    walk = Walk(torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([1, 5]), None, 2, torch.device("cpu"))
    kept = walk.first.ctypes.data, walk.slots.ctypes.data
    assert walk.read.tolist() == [0, 2]
    walk.move(torch.tensor([9, 1]), torch.tensor([4, 1]))
    assert (walk.first.ctypes.data, walk.slots.ctypes.data) == kept
    assert walk.read.tolist() == [8, 2]
    assert walk.fresh.tolist() == [False, True]
    for ends, slots in (([9, 0], [4, 1]), ([9, 1], [4, 4])):
        with pytest.raises(ValueError, match="a slot of its own and positions from 0 on"):
            walk.move(torch.tensor(ends), torch.tensor(slots))
    state = RecurrentState(memory={(0, "a"): torch.zeros(8)}, shapes={(0, "a"): ((), torch.float32)}, rows=2)
    flat = FlatTokens()
    flat.add([1], 9)
    flat.add([1], 9)
    batch = flat.make_batch(torch.zeros(2, 2, dtype=torch.int32).numpy(), SIZE, slots=[0, 4])
    with pytest.raises(ValueError, match="at least 10 entries, got 8"):
        state.plan_walk(batch, torch.device("cpu"), walk)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_may_have_wider_weights_than_inputs(dtype):
    """Bailing keeps them in float32."""
    torch.manual_seed(1)
    x, weight = torch.randn(1, 6, 9, dtype=torch.bfloat16), torch.randn(6, 4, dtype=dtype)
    layer = RecurrentLayer(RecurrentState(), 0, "layer")
    convolve(layer, lambda x, *_, **__: x, x, weight, None)
    state = layer.shared
    state.allocate(1, 2, torch.device("cpu"))
    parts = []
    for first, end in ((0, 5), (5, 9)):
        flat = FlatTokens()
        flat.add(range(first, end), end)
        batch = flat.make_batch(torch.zeros(1, 2, dtype=torch.int32).numpy(), SIZE)
        with state.walking(state.plan_walk(batch, torch.device("cpu"))):
            parts.append(convolve(layer, lambda x, *_, **__: x, x[:, :, first:end], weight, None))
    expected = torch.conv1d(x.float(), weight.float()[:, None], padding=3, groups=6)[:, :, :9]
    found = torch.cat(parts, -1)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.to(torch.bfloat16))


def test_joined_copies_are_those_made_one_by_one():
    """Also where a copy reads what an earlier one has written, and where entries follow one another."""
    rng = random.Random(1)
    joined = 0
    for _ in range(500):
        pairs: list[tuple[int, int]] = []
        for _ in range(rng.randint(1, 5)):
            source, target, count = rng.randrange(8), rng.randrange(8), rng.randint(1, 4)
            pairs += [(source + row, target + row) for row in range(count)]
        state = RecurrentState(memory={(0, "a"): torch.arange(12)})
        state.copy(pairs)
        expected = list(range(12))
        for source, target in pairs:
            expected[target] = expected[source]
        assert state.memory[0, "a"].tolist() == expected
        joined += len(join_pairs(pairs)) < len(pairs)
    assert joined > 100
    assert join_pairs([(2, 4), (3, 5), (9, 0), (4, 2)]) == [(2, 4, 2), (9, 0, 1), (4, 2, 1)]


def test_a_walk_keeps_the_last_states_and_reads_the_first():
    flat = FlatTokens()
    for first, end in ((0, 7), (20, 21), (9, 12)):
        flat.add(range(first, end), end)
    batch = flat.make_batch(torch.zeros(3, 2, dtype=torch.int32).numpy(), SIZE, slots=[2, 0, 1])
    walk = Walk(batch.query_start, batch.kv_len, batch.slots, 3, torch.device("cpu"))
    assert walk.read.tolist() == [2 * 3, 1 * 3 + 9 % 3, 20 % 3]  # the longest first
    assert walk.fresh.tolist() == [True, False, False]
    assert [len(moment.rows) for moment in walk.moments] == [3, 2, 2, 1, 1, 1, 1]
    left = {int(place) for moment in walk.moments for place in moment.to}
    assert left == {6 + 5 % 3, 6 + 6 % 3, 6 + 7 % 3, 3 + 10 % 3, 3 + 11 % 3, 3 + 12 % 3, 21 % 3}


# ---- MXFP4


def test_a_checkpoint_in_mxfp4_is_unpacked(tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS["gpt-oss"]()).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, width, outputs = weights.pop(name).shape
        weights[f"{name}_blocks"] = torch.randint(0, 256, (experts, outputs, width // 32, 16), dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.randint(120, 124, (experts, outputs, width // 32), dtype=torch.uint8)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = Mxfp4Config(dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, quantization_config=options
    )
    sequences = Sequences(tmp_path)
    sequences.runner.allocate(12)
    [ours] = sequences.step((0, 0, 40))
    with torch.inference_mode():
        expected = theirs.float()(sequences.ids[:1, :40], use_cache=False).logits[0]
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)
