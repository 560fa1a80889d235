"""Hidden states of chosen layers, and passes through the first layers only, against transformers, fused and not."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from runners import tiny_models
from runners.test_transformers import ARCHITECTURES, COMMON, SIZE, Cache, save
from tailrace.config import ModelConfig
from tailrace.drafting.early_exit import EarlyExit
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.runners import load_runner
from tailrace.runners.base import LayeredRunner
from tailrace.runners.paged_model import PagedModel
from tailrace.runners.stack import Stack
from tailrace.runners.transformers import TransformersRunner


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    made = {}

    def load(name: str):
        if name not in made:
            folder = save(name, tmp_path_factory.mktemp("model"))
            theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            ours = load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=SIZE)
            ours.allocate(32)
            assert isinstance(ours, LayeredRunner)
            made[name] = (ours, theirs)
        ours, theirs = made[name]
        ours.capture(())
        return ours, theirs

    return load


def ids(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, 211, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def shortened(model, layers: int):
    """A copy of transformers' model with its first layers only."""
    short = copy.deepcopy(model)
    owner, name = Stack(short, len(Stack(short, short.config.num_hidden_layers).layers)).owner, None
    for name, child in owner.named_children():
        if isinstance(child, torch.nn.ModuleList):
            setattr(owner, name, child[:layers])
            break
    assert name
    return short


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hidden_states_are_those_of_transformers(name, loaded):
    """Two sequences, one in two chunks: what is left after each pass belongs to that pass's tokens."""
    ours, theirs = loaded(name)
    last = ours.num_layers
    ours.capture((0, last, last - 1))
    prompts, cache = [ids(37), ids(9, 6)], Cache(2, 4)
    ours.forward(cache.batch([(0, prompts[0][:20], 0), (1, prompts[1], 0)]))
    first = ours.hidden.clone()
    ours.forward(cache.batch([(0, prompts[0], 20)]))
    got = [torch.cat([first[:20], ours.hidden]), first[20:]]
    seen: dict[int, torch.Tensor] = {}
    layers = Stack(theirs, last).layers
    for i in (0, last - 1):  # not output_hidden_states: some families name the normed states as the last layer's
        layers[i].register_forward_hook(
            lambda module, args, out, i=i: seen.update({i: (out if isinstance(out, torch.Tensor) else out[0])[0]})
        )
    for prompt, mine in zip(prompts, got, strict=True):
        with torch.inference_mode():
            out = theirs.base_model(torch.tensor([prompt]), use_cache=False)
        expected = torch.cat([seen[0], out.last_hidden_state[0], seen[last - 1]], -1)
        torch.testing.assert_close(mine, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_first_layers_are_a_shorter_model(name, loaded):
    ours, theirs = loaded(name)
    cache, prompt = Cache(1, 4), ids(40)
    short = shortened(theirs, 1)
    first = ours.forward_layers(cache.batch([(0, prompt[:13], 0)]), 1).clone()
    rest = ours.forward_layers(cache.batch([(0, prompt, 13)]), 1)
    with torch.inference_mode():
        expected = short(torch.tensor([prompt]), use_cache=False).logits[0]
        whole = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
    torch.testing.assert_close(torch.cat([first, rest]), expected, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(ours.forward(cache.batch([(0, prompt, 0)])), whole, atol=2e-4, rtol=2e-4)


def test_all_layers_are_the_model_bit_for_bit(loaded):
    ours, _ = loaded("llama")
    batch = Cache(1, 4).batch([(0, ids(30), 0)])
    whole = ours.forward(batch).clone()
    assert torch.equal(ours.forward_layers(batch, ours.num_layers), whole)


def test_capturing_changes_no_bit_and_is_row_invariant(loaded):
    ours, _ = loaded("llama")
    prompt = ids(40)
    plain = ours.forward(Cache(1, 4).batch([(0, prompt, 0)])).clone()
    ours.capture((1, 3))
    assert torch.equal(ours.forward(Cache(2, 4).batch([(0, prompt, 0), (1, [7] * 30, 0)]))[:40], plain)
    whole, cache = ours.hidden[:40].clone(), Cache(2, 4)
    ours.forward(cache.batch([(0, prompt[:13], 0)]))
    first = ours.hidden.clone()
    ours.forward(cache.batch([(1, [3] * 9, 0), (0, prompt, 13)]))
    assert torch.equal(torch.cat([first, ours.hidden[9:]]), whole)
    with torch.inference_mode():
        assert torch.equal(ours.head(whole[:, 64:]), plain)  # layer L is what enters the output head


def test_first_layers_write_their_own_cache_only_and_leave_the_hidden_states(loaded):
    ours, _ = loaded("llama")
    cache = Cache(2, 4)
    ours.capture((2,))
    ours.forward(cache.batch([(0, ids(20), 0)]))
    hidden = ours.hidden.clone()
    bits = [layer.keys.view(torch.int32) for layer in ours.paged.layers.caches]  # NaN where none was written
    before = [keys.clone() for keys in bits]
    ours.forward_layers(cache.batch([(1, ids(12, 8), 0)]), 2)
    changed = [not torch.equal(a, b) for a, b in zip(before, bits, strict=True)]
    assert changed == [True, True, False]
    assert torch.equal(ours.hidden, hidden)
    assert len(ours.stack.layers) == len(getattr(ours.stack.owner, ours.stack.name)) == 3


def test_the_model_is_whole_again_after_an_error(loaded, monkeypatch):
    ours, _ = loaded("llama")
    batch = Cache(1, 4).batch([(0, ids(8), 0)])
    whole = ours.forward(batch).clone()
    with monkeypatch.context() as patch:
        patch.setattr(PagedModel, "logits", lambda *_: (_ for _ in ()).throw(RuntimeError("planted")))
        with pytest.raises(RuntimeError, match="planted"):
            ours.forward_layers(batch, 1)
    assert torch.equal(ours.forward(batch), whole)


def test_nothing_is_kept_where_nothing_is_asked(loaded):
    ours, _ = loaded("llama")
    ours.capture((1,))
    ours.capture(())
    ours.forward(Cache(1, 4).batch([(0, ids(8), 0)]))
    assert ours.hidden.numel() == 0
    assert not ours.stack.hooks
    assert not any(module._forward_hooks for module in ours.paged.model.modules())


@pytest.mark.parametrize("layers", [(4,), (-1,), (1, 1)])
def test_layers_that_there_are_not(loaded, layers):
    ours, _ = loaded("llama")
    with pytest.raises(ValueError, match=r"\[0, 3\]"):
        ours.capture(layers)


@pytest.mark.parametrize("layers", [0, 4, -1])
def test_so_many_layers_there_are_not(loaded, layers):
    ours, _ = loaded("llama")
    with pytest.raises(ValueError, match=r"layers must be an integer in \[1, 3\]"):
        ours.forward_layers(Cache(1, 4).batch([(0, [1], 0)]), layers)


def test_a_model_without_a_list_of_layers():
    with pytest.raises(ModelLoadError, match="no list of 3 decoder layers"):
        Stack(torch.nn.Linear(2, 2), 3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON))
    assert Stack(model, 3).owner is model.model


@torch.inference_mode()
def test_layers_with_states_are_seen_too(tmp_path):
    """Of a hybrid, in two chunks: the outputs of layers with a state, of layers with keys, and after the last norm."""
    tiny_models.save("qwen3.5", tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), tmp_path, block_size=SIZE)
    assert isinstance(ours, TransformersRunner)
    ours.allocate_states(2, 2, 0)
    ours.allocate(16)
    layers = theirs.model.layers
    assert ours.num_layers == len(layers)
    wanted = (*range(len(layers)), len(layers))
    ours.capture(wanted)
    prompt, cache = ids(37), Cache(2, 4)
    ours.forward(cache.batch([(0, prompt[:20], 0)]))
    first = ours.hidden.clone()
    ours.forward(cache.batch([(0, prompt, 20)]))
    seen: dict[int, torch.Tensor] = {}
    for i, layer in enumerate(layers):
        layer.register_forward_hook(
            lambda module, args, out, i=i: seen.update({i: (out if isinstance(out, torch.Tensor) else out[0])[0]})
        )
    seen[len(layers)] = theirs.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    expected = torch.cat([seen[i] for i in wanted], -1)
    torch.testing.assert_close(torch.cat([first, ours.hidden]), expected, atol=3e-4, rtol=3e-4)
    with pytest.raises(ModelLoadError, match="keeps a state per sequence"):
        ours.forward_layers(cache.batch([(0, prompt, 0)]), 1)
    with pytest.raises(ConfigError, match="early exit: the model keeps a state per sequence"):
        EarlyExit(ours, 1, None, SIZE)  # type: ignore[arg-type]
