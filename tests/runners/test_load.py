"""What is found at load: windows in masks, unknown options, wrong formulas, what can't be served, and the sentence that
says so. Each check is shown to see a planted fault."""

from __future__ import annotations

import json
import logging
import math
import shutil
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    eager_mask,
    sliding_window_causal_mask_function,
)

from architectures.tiny import write
from architectures.variants import REQUIRED_FIELDS
from runners.tiny_models import save
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.runners import load_runner, probe, recurrent, reproduction
from tailrace.runners.attention import AttentionLayer
from tailrace.runners.load_checks import dequantize_at_load
from tailrace.runners.masks import AttentionMask, identify_mask, made_mask, read_mask_tensor
from tailrace.runners.paged_model import PagedModel
from tailrace.runners.reproduction import NotReproducedError, short_windows
from tailrace.runners.trials import TRIAL_TOKENS, trial_ids

SMALL = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def saved(folder, config):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    return folder


def load(folder, dtype="float32"):
    return load_runner(ModelConfig(dtype=dtype, threads=1, device="cpu"), folder, block_size=16)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("roberta", "its first position is not 0"),
        ("bart", "takes no positions and counts tokens by itself"),
        ("recurrent_gemma", "keeps more from token to token than keys and values"),
        ("mpt", "does not go through transformers' attention interface"),
        ("zamba2", "several may share it"),
    ],
)
def test_why_a_model_is_not_reproduced(kind, why, tmp_path):
    write(kind, REQUIRED_FIELDS.get(kind, {}), tmp_path)
    with pytest.raises(ModelLoadError, match=why):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["gemma4", "mllama"])
def test_of_a_model_that_sees_the_text_is_served(kind, tmp_path):
    """Its vision tower has layers with the same numbers, and cross attention does nothing without an image."""
    write(kind, REQUIRED_FIELDS.get(kind, {}), tmp_path)
    assert load(tmp_path).num_layers in (3, 4)  # type: ignore[attr-defined]


def test_a_model_whose_images_see_each_other_has_plain_masks_for_text(tmp_path):
    """Gemma 4 unified: its mask is a table of this prompt's images, of which there are none."""
    write("gemma4_unified", {}, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.config.text_config.use_bidirectional_attention == "vision"
    runner = load(tmp_path)
    runner.allocate(8)
    wanted = theirs(trial_ids(runner.vocab_size)[None], use_cache=False).logits[0]
    torch.testing.assert_close(runner.paged.run_trial(), wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A window in the mask only: the model's attention is not told of it."""
    config = transformers.Qwen2MoeConfig(
        **SMALL,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        use_sliding_window=True,
        max_window_layers=1,
        sliding_window=40,
    )
    return saved(tmp_path_factory.mktemp("windowed"), config)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("plain"), transformers.LlamaConfig(**SMALL))


# ---- masks

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 2, 8, 4096, 100_000])
def test_a_mask_function_says_its_window_or_chunk(size):
    padding = torch.zeros(1, dtype=torch.int64)
    assert identify_mask(causal_mask_function, 0, CPU) == AttentionMask()
    assert identify_mask(sliding_window_causal_mask_function(size), size, CPU) == AttentionMask(window=size)
    if size > 1:  # a chunk of one is a window of one
        assert identify_mask(chunked_causal_mask_function(size, padding), size, CPU) == AttentionMask(chunk=size)
    assert identify_mask(sliding_window_causal_mask_function(size), size + 1, CPU) is None
    assert identify_mask(bidirectional_mask_function, 0, CPU) is None
    other = and_masks(causal_mask_function, lambda batch, head, query, key: key != 3)
    assert identify_mask(other, 0, CPU) is None


def test_a_mask_function_is_asked_on_the_models_device():
    """It may hold tensors of that device: llama 4's does."""
    held, sums = torch.zeros(1, device="meta"), []

    def function(batch, head, query, key):
        sums.append(query + held)
        raise TypeError

    assert identify_mask(function, 0, held.device) is None
    assert sums[0].device.type == "meta"


def test_a_mask_tensor_must_be_what_it_says():
    asked = {"batch_size": 1, "q_length": 20, "kv_length": 20, "dtype": torch.float32}
    made = made_mask(mask_function=sliding_window_causal_mask_function(7), local_size=7, **asked)
    assert read_mask_tensor(made, 20) == AttentionMask(window=7)
    assert read_mask_tensor(eager_mask(**asked), 20) == AttentionMask()  # a model's own, plainly causal
    assert read_mask_tensor(eager_mask(mask_function=sliding_window_causal_mask_function(7), **asked), 20) is None
    made[0, 0, 19, 15] = -1.0  # a bias
    assert read_mask_tensor(made, 20) is None


def test_windows_are_short_during_the_trial_only(windowed):
    model = load(windowed).paged.model
    with short_windows(model):
        assert model.config.sliding_window < TRIAL_TOKENS / 2
    assert model.config.sliding_window == 40


def test_the_window_of_the_mask_is_the_window_that_is_served(windowed):
    runner = load(windowed)
    kinds = runner.paged.model.config.layer_types
    assert set(kinds) == {"sliding_attention", "full_attention"}
    assert [layer.window for layer in runner.paged.attention] == [40 * (kind == "sliding_attention") for kind in kinds]


# ---- what differs is refused


def distorted(change):
    """AttentionLayer.attend with other settings."""
    real = AttentionLayer.attend_cached

    def attend(self, query, key, value, sinks=None, selected=None):
        return real(replace(self, **change), query, key, value, sinks, selected)

    return attend


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", [{"window": 0}, {"window": 6}, {"scale": 0.3}, {"softcap": 1.0}], ids=str)
def test_a_wrong_formula_is_refused(windowed, monkeypatch, dtype, change):
    monkeypatch.setattr(AttentionLayer, "attend_cached", distorted(change))
    with pytest.raises(ModelLoadError, match=r"paged attention differs from the model's own"):
        load(windowed, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_is_another_beside_neighbours_is_refused(plain, monkeypatch, dtype):
    """Every layer is right, but positions are those of the flat batch."""
    run = PagedModel.run
    flat = lambda self, batch: run(self, replace(batch, positions=torch.arange(len(batch.positions))))  # noqa: E731
    monkeypatch.setattr(PagedModel, "run", flat)
    with pytest.raises(ModelLoadError, match="does not reproduce the model"):
        load(plain, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_scan_is_refused(tmp_path, monkeypatch, dtype):
    """What transformers' own scan loses by rounding is allowed; a state that forgets nothing is not."""
    save("kimi linear", tmp_path)
    right = recurrent.OPERATIONS["chunk_kimi_delta_attention"]

    def wrong(layer, original, *parts, g, **options):
        return right(layer, original, *parts, g=g if layer.shared.walk is None else g * 0, **options)

    monkeypatch.setitem(recurrent.OPERATIONS, "chunk_kimi_delta_attention", wrong)
    with pytest.raises(ModelLoadError, match="does not reproduce the model"):
        load(tmp_path, dtype)


def test_another_prompt_is_tried_where_numbers_are_rounded(plain, monkeypatch):
    """An expert that changes places may spoil a prompt, but not each."""
    check, tried = reproduction.check_prompt, []

    def spoilt(paged, number):
        tried.append(number)
        if number < 2:
            raise NotReproducedError("an expert")
        check(paged, number)

    monkeypatch.setattr(reproduction, "check_prompt", spoilt)
    assert load(plain, "bfloat16").paged.attention[0].heads == 2
    assert tried == [0, 1, 2]
    with pytest.raises(ModelLoadError, match="an expert"):
        load(plain, "float32")
    assert tried == [0, 1, 2, 0]


def test_rounding_is_no_fault(windowed, plain):
    """Experts that change places make bfloat16 logits err by much more than a fixed bound."""
    assert load(windowed, "bfloat16").dtype == torch.bfloat16
    assert load(plain, "bfloat16").dtype == torch.bfloat16


def changed_tensor(folder, target, name, change):
    """A copy of the folder in which a tensor is another."""
    shutil.copytree(folder, target)
    path = target / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: change(tensors[name].clone())}, path, {"format": "pt"})
    return target


@pytest.fixture(scope="module")
def little(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("little"), transformers.LlamaConfig(**SMALL, tie_word_embeddings=False))


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_weights_that_are_no_numbers_are_named(little, tmp_path, name, value):
    def change(tensor):
        tensor.view(-1)[5] = value
        return tensor

    folder = changed_tensor(little, tmp_path / "m", name, change)
    with pytest.raises(
        ModelLoadError, match=f"{folder}: tensor {name} has numbers that are NaN or infinite in float32"
    ):
        load(folder)


def test_weights_that_are_too_large_for_the_dtype_are_named(little, tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    folder = changed_tensor(little, tmp_path / "m", name, lambda tensor: tensor.double() * 1e300)
    with pytest.raises(ModelLoadError, match=f"tensor {name} has numbers that are NaN or infinite in bfloat16"):
        load(folder, "bfloat16")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"vocab_size": 77},
            r"tensor .*embed_tokens.weight is \[211, 64\], and by config.json \(vocab_size 77\) it should",
        ),
        ({"intermediate_size": 3}, r"gate_proj.weight is \[96, 64\], and by config.json \(intermediate_size 3\)"),
        (
            {"num_key_value_heads": 3, "head_dim": 16},
            r"k_proj.weight is \[32, 64\], and by config.json \(num_key_value_",
        ),
        ({"num_attention_heads": 3}, "no model can be made of its config.json .*number of attention heads"),
        ({"rms_norm_eps": "x"}, "no model can be made of its config.json .*'rms_norm_eps'"),
        ({"hidden_act": "nope"}, "config.json: hidden_act 'nope' is not known"),
        ({"rope_theta": 0.0, "rope_parameters": None}, "the rope settings of config.json"),
    ],
)
def test_settings_that_make_no_model_of_these_weights(little, tmp_path, fields, said):
    folder = shutil.copytree(little, tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(ModelLoadError, match=f"{folder}: .*{said}"):
        load(folder)


def test_files_of_many_other_tensors_are_one_line_in_the_log(little, tmp_path, caplog, monkeypatch):
    """transformers writes a line for each."""
    folder = shutil.copytree(little, tmp_path / "m")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    others = {f"other\n{place}": torch.zeros(1) for place in range(300)}
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    save_file(tensors | others, path, {"format": "pt"})
    load(folder)
    [line] = [line for line in caplog.messages if "other" in line]
    assert line == f"{folder}: 300 tensors of its files have no place in the model, such as 'other\\n0'"
    del tensors["lm_head.weight"]
    save_file(tensors | others, path, {"format": "pt"})
    with pytest.raises(
        ModelLoadError, match=f"{folder}: the model's weights are not all there: lm_head.weight missing"
    ):
        load(folder)
    assert not [record for record in caplog.records if record.name.startswith("transformers")]


def test_options_that_nobody_knows_are_refused():
    probe.refuse_options("Layer", {"dropout": 0.0, "sliding_window": 8, "head_mask": None, "output_attentions": False})
    for option in ({"head_bias": torch.ones(1)}, {"position_bias": torch.ones(1)}, {"is_causal": 0.5}):
        with pytest.raises(ModelLoadError, match=f"Layer calls attention with {next(iter(option))}"):
            probe.refuse_options("Layer", option)
    with pytest.raises(ModelLoadError, match="dropout, output_attentions"):
        probe.refuse_options("Layer", {"dropout": 0.1, "output_attentions": True})


# ---- sentences


@pytest.mark.parametrize(
    "config",
    [
        transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4),
        transformers.GPTNeoConfig(
            vocab_size=50, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
        ),
        transformers.FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    ],
    ids=lambda config: config.model_type,
)
def test_models_with_attention_of_their_own_say_so(tmp_path, config):
    with pytest.raises(ModelLoadError, match="does not go through transformers' attention interface"):
        load(saved(tmp_path, config))


def test_what_a_model_raises_becomes_a_sentence(plain, monkeypatch):
    def broken(self, *args, **options):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(transformers.models.llama.modeling_llama.LlamaMLP, "forward", broken)
    with pytest.raises(ModelLoadError, match=r"LlamaForCausalLM does not run .* \(RuntimeError: no such thing\)"):
        load(plain)


# ---- float8 checkpoints


@pytest.mark.parametrize("method", ["fp8", "mxfp4"])
def test_no_kernels_of_a_hub_are_needed_where_transformers_sees_a_gpu(method):
    config = transformers.LlamaConfig(quantization_config={"quant_method": method})
    dequantize_at_load(config)
    assert config.quantization_config == {"quant_method": method, "dequantize": True}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.filterwarnings("ignore")
def test_float8_checkpoints_are_served_in_the_dtype_that_was_asked_for(tmp_path, dtype):
    config = transformers.LlamaConfig(
        **(SMALL | {"hidden_size": 128, "intermediate_size": 128, "num_key_value_heads": 4})
    )
    saved(tmp_path, config)
    whole = load_file(tmp_path / "model.safetensors")
    stored = {}
    for name, weight in whole.items():
        if "proj" in name:
            scale = weight.abs().amax() / 448
            stored[name] = (weight / scale).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale.reshape(1, 1)
            whole[name] = stored[name].float() * scale
        else:
            stored[name] = weight
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((tmp_path / "config.json").read_text())
    written["quantization_config"] = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
        "modules_to_not_convert": ["lm_head"],
    }
    (tmp_path / "config.json").write_text(json.dumps(written))
    runner = load(tmp_path, dtype)
    assert {p.dtype for p in runner.paged.model.parameters()} == {getattr(torch, dtype)}
    runner.allocate(8)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(whole)
    with torch.inference_mode():
        expected = theirs(trial_ids(211)[None]).logits[0]
    error = (runner.paged.run_trial().float() - expected).norm() / expected.norm()
    assert error < (1e-4 if dtype == "float32" else 5e-2)
