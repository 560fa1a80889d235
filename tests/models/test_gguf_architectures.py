"""GGUF files of each architecture become the model that they were written from, on both ways of conversion: the same
settings, weights and rotary frequencies, and the same logits far from the beginning.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_judge.hybrids import HYBRIDS
from gguf_judge.models import COMMON, MODELS, make_model
from models import gguf_writer
from models.gguf_writer import write_model
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import convert, describe, gguf
from tailrace.models.describe import defaults
from tailrace.models.gguf_architectures import read_settings
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_recipes import NEXT, NEXT_WAYS, PERMUTED, Recipes
from tailrace.runners.experts import PackedExperts
from tailrace.runners.load_transformers import load_transformers

EXPERTS = (".gate_up_proj", ".up_proj", ".experts.down_proj")  # of all experts of a layer
FAR = 5000  # behind the original context of every model that has a scaling


def convert_file(path: Path, keep: bool = False) -> Path:
    """The converted folder, without a tokenizer."""
    folder = path.with_suffix(f".{keep}")
    folder.mkdir()
    convert.convert_weights(Fields(path), folder, "float32", keep)
    return folder


def logits_of(model: Any, start: int) -> torch.Tensor:
    """Logits of a prompt at these positions. LongRoPE goes by the largest."""
    ids = torch.randint(0, COMMON["vocab_size"], (1, 70), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(ids, position_ids=torch.arange(start, start + 70)[None]).logits[0]


# of these the converter itself is the judge alone (make test-gguf)
UNWRITTEN = {"lfm2", "qwen35", "qwen35moe", "gemma4", "gpt2", "minimax-m2", "granitemoe", "granitemoe shared"}
UNWRITTEN |= {"qwen3next", "lfm2moe", "llama4", "hunyuan-moe", "ernie4_5-moe", *HYBRIDS}
WRITTEN = [name for name in MODELS if name not in UNWRITTEN]


@pytest.mark.few(16)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_becomes_the_model_that_it_was_written_from(name: str, tmp_path: Path):
    model = make_model(name)
    folder = convert_file(write_model(model, tmp_path / "tiny.gguf"))
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert describe(folder, "m").max_model_len == context_of(model)
    mine, theirs = made.state_dict(), model.state_dict()
    assert mine.keys() == theirs.keys()
    for path, value in theirs.items():
        torch.testing.assert_close(mine[path], value, atol=1e-6, rtol=1e-6, msg=path)
    for start in (0, FAR):
        torch.testing.assert_close(logits_of(made, start), logits_of(model, start), atol=2e-3, rtol=1e-3)


def context_of(model: Any) -> int:
    rope = model.config.rope_parameters
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if kind == "yarn":
        return int(rope["original_max_position_embeddings"] * factor)
    return model.config.max_position_embeddings  # which the file states as context_length


@pytest.mark.few(8)
@pytest.mark.parametrize("name", WRITTEN)
def test_blocks_stay_and_are_the_same_weights(name: str, tmp_path: Path):
    """Both ways of conversion put rows in the same places."""
    path = write_model(make_model(name), tmp_path / "tiny.gguf", Type.Q8_0)
    folders = {keep: convert_file(path, keep) for keep in (True, False)}
    kept, plain = (load_file(folders[keep] / "model.safetensors") for keep in (True, False))
    types = AutoConfig.from_pretrained(folders[True]).quantization_config["types"]
    assert kept.keys() == plain.keys()
    assert ("model.embed_tokens.weight" in types) != name.startswith("gemma")  # which scales it
    assert any("self_attn" in part for part in types)
    assert all(part in types for part in plain if part.endswith(EXPERTS))
    for part, value in kept.items():
        if part in types:
            assert value.dtype == torch.uint8
            value = torch.from_numpy(dequantize(value.numpy(), Type(types[part])))
            if name == "gpt-oss" and part.endswith(EXPERTS):  # which has them as [inputs, outputs]
                value = value.mT
        assert torch.equal(value, plain[part]), part


@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "deepseek2 v3"])
@torch.inference_mode()
def test_experts_in_blocks_are_computed(name: str, tmp_path: Path):
    """As those of the same weights as numbers, but for activations that are rounded to integers."""
    path = write_model(make_model(name), tmp_path / "tiny.gguf", Type.Q8_0)
    mixtures = []
    for keep in (True, False):
        folder = convert_file(path, keep)
        runner = load_transformers(ModelConfig(model=str(folder), dtype="float32"), folder, block_size=16)
        runner.allocate(64)
        assert runner.decode_steps is not None
        found = [module for module in runner.paged.model.modules() if isinstance(module, PackedExperts)]
        assert found
        assert all(module.quantized == keep for module in found)
        mixtures.append(found)
    torch.manual_seed(0)
    for blocks, numbers in zip(*mixtures, strict=True):
        states, weights = torch.randn(9, COMMON["hidden_size"]), torch.rand(9, 2)
        index = torch.stack([torch.randperm(numbers.up.experts)[:2] for _ in range(9)])
        got, expected = (module(states, index, weights) for module in (blocks, numbers))
        assert 0 < torch.dist(got, expected) < 0.02 * torch.linalg.vector_norm(expected)


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_model("llama")


REFUSED = {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "attention.clamp_kqv": 8.0,
    "attention.max_alibi_bias": 8.0,
    "attention.scale": 0.5,
    "attention.sliding_window": 64,
    "attention.causal": False,
    "attention.temperature_scale": 0.1,
    "attention.value_length": 64,
    "attention.head_count": 0,
    "attention.head_count_kv": [2, 4, 2, 2],
    "expert_weights_scale": 2.5,
    "expert_gating_func": 2,
    "logit_scale": 0.25,
    "embedding_scale": 12.0,
    "residual_scale": 0.2,
    "rope.scaling.type": "su",
    "rope.scaling.attn_factor": 1.2,
    "rope.scaling.alpha": 1000.0,
    "rope.dimension_sections": [16, 24, 24, 0],
    "rope.freq_base_swa": 500.0,
    "swiglu_clamp_exp": [7.0, 7.0, 7.0, 7.0],
    "pooling_type": 3,
    "a_field_of_tomorrow": 1,
    "rope.scaling.factor": float("nan"),
    "rope.scale_linear": -2.0,
    "rope.scaling.original_context_length": -1.0,
    "attention.key_length": 0,
    "rope.scaling.yarn_attn_factor": 1.5,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_beta_fast": float("inf"),
}
NEUTRAL = {
    "attn_logit_softcapping": 0.0,
    "attention.causal": True,
    "attention.scale": 32**-0.5,
    "attention.sliding_window": 0,
    "attention.temperature_length": 8192,
    "expert_count": 0,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 0.0,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.finetuned": True,
    "rope.scaling.yarn_log_multiplier": 0.1,
    "rope.dimension_sections": [0, 0, 0, 0],
    "rope.freq_base_swa": 500000.0,
    "tensor_data_layout": "Meta AI original pth",
    "vocab_size": 260,
}


@pytest.mark.parametrize(("key", "value"), REFUSED.items())
def test_a_field_that_is_not_understood_is_refused(llama: Any, tmp_path: Path, key: str, value: Any):
    path = write_model(llama, tmp_path / "tiny.gguf", more={key: value})
    shown = re.escape(f"the field llama.{key} is {value!r}")
    with pytest.raises(
        ModelLoadError, match=rf"{shown}.*, which is not supported for llama: its tokens would be wrong"
    ):
        convert_file(path)


def test_fields_that_change_nothing_are_accepted(llama: Any, tmp_path: Path):
    without = NEUTRAL.keys() - {"vocab_size"}  # the writer has it
    made = convert_file(write_model(llama, tmp_path / "tiny.gguf", more={key: NEUTRAL[key] for key in without}))
    plain = convert_file(write_model(llama, tmp_path / "plain.gguf"))
    assert (made / "config.json").read_text() == (plain / "config.json").read_text()


def test_an_architecture_that_is_not_converted_is_a_sentence(llama: Any, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(gguf_writer.NAMES, "llama", "rwkv7")
    monkeypatch.setattr(gguf_writer, "split", lambda *_: [])
    path = write_model(llama, tmp_path / "tiny.gguf")
    with pytest.raises(
        ModelLoadError, match=r"the architecture rwkv7 is not converted; these are: arcee, .*, stablelm"
    ):
        convert_file(path)


@pytest.mark.parametrize("value", [[], [2, 2], [2] * 5, [2, 2, 2, -1], [2.0] * 4, [True] * 4, "2", 2.0])
@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
def test_a_list_has_a_whole_number_for_each_layer(llama: Any, key: str, value: Any, monkeypatch, tmp_path: Path):
    """A file may have any list, also an empty one, which no writer writes."""
    each = Fields.each
    monkeypatch.setattr(Fields, "each", lambda self, name, *rest: value if name == key else each(self, name, *rest))
    fields = Fields(write_model(llama, tmp_path / "tiny.gguf"))
    with pytest.raises(ModelLoadError, match=re.escape(f"the field llama.{key} is ")):
        read_settings(fields)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("general.type", "adapter", "a LoRA adapter, not a model: serve its base model; --lora"),
        ("general.type", "mmproj", "the part of a model that sees or hears"),
        ("general.architecture", "clip", "the part of a model that sees or hears"),
        ("general.type", "imatrix", "an importance matrix"),
        ("general.architecture", "controlvector", "a control vector"),
        ("general.type", "tomorrow", r"the field general\.type is 'tomorrow', and only model"),
        ("general.type", ["adapter"], r"the field general\.type is \['adapter'\], and only model"),
        ("general.architecture", [], "the architecture without a name is not converted"),
    ],
)
def test_a_file_that_is_no_whole_model_says_what_it_is(
    llama: Any, field: str, value: Any, reason: str, monkeypatch, tmp_path: Path
):
    general = Fields.get_field
    monkeypatch.setattr(
        Fields, "get_field", lambda self, name, *rest: value if name == field else general(self, name, *rest)
    )
    with pytest.raises(ModelLoadError, match=reason):
        read_settings(Fields(write_model(llama, tmp_path / "tiny.gguf")))


def test_sampling_defaults_become_those_of_generation_config(llama: Any, tmp_path: Path, capfd):
    """As float32 they would be 0.800000011920929."""
    given = {"temp": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.1, "mirostat": 2}
    more = {f"general.sampling.{key}": value for key, value in given.items()}
    folder = convert_file(write_model(llama, tmp_path / "tiny.gguf", more=more))
    expected = {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    assert defaults(folder) == expected
    assert "warning: the sampling default general.sampling.mirostat = 2 is not used" in capfd.readouterr().err


@pytest.mark.parametrize(("given", "expected"), [({"temp": 0.0}, {"temperature": 0.0}), ({"top_k": 0}, {"top_k": 0})])
def test_a_sampling_default_of_zero_is_kept(
    llama: Any, tmp_path: Path, given: dict[str, Any], expected: dict[str, Any]
):
    more = {f"general.sampling.{key}": value for key, value in given.items()}
    assert defaults(convert_file(write_model(llama, tmp_path / "tiny.gguf", more=more))) == expected


def test_queries_keys_and_values_may_be_one_tensor():
    """As the converter writes them with --fuse-qkv, in the order of interleaved pairs."""
    settings = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    recipes = Recipes("llama", settings, {"blk.0.attn_qkv.weight"}, {}, PERMUTED, 1)
    rows = np.arange(16)[:, None] * np.ones((16, 3))
    made = {}
    for name in "qkv":
        recipe = recipes.find(f"model.layers.0.self_attn.{name}_proj.weight")
        assert recipe is not None
        made[name] = recipe.join([rows])[:, 0].tolist()
    assert made == {"q": [0, 2, 1, 3, 4, 6, 5, 7], "k": [8, 10, 9, 11], "v": [12, 13, 14, 15]}


def test_the_runner_serves_what_is_converted(tmp_path: Path):
    """Merged experts are loaded under the names that they have in the model."""
    for name in ("qwen3moe", "gpt-oss", "deepseek2 v3"):
        folder = convert_file(write_model(make_model(name), tmp_path / f"{name}.gguf"))
        config = ModelConfig(model=str(folder), dtype="float32", device="cpu")
        load_transformers(config, folder, block_size=16).allocate(64)


def test_folders_of_an_older_converter_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    found = gguf.converted_folder(tmp_path / "a.gguf", tmp_path, ("float32", "dequantized"), "a")
    assert gguf.FORMAT > 1  # whose folders have no rotary scaling
    monkeypatch.setattr(gguf, "FORMAT", gguf.FORMAT - 1)
    assert gguf.converted_folder(tmp_path / "a.gguf", tmp_path, ("float32", "dequantized"), "a") != found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("top_k", value) for value in ("many", 3.5)),
        *(("temp", value) for value in (-1.0, float("nan"), True)),
        ("top_p", 1.5),
        ("min_p", float("inf")),
        ("penalty_repeat", 0.0),
    ],
)
def test_a_sampling_default_is_a_number_in_its_range(llama: Any, key: str, value: Any, tmp_path: Path):
    path = write_model(llama, tmp_path / "tiny.gguf", more={f"general.sampling.{key}": value})
    with pytest.raises(ModelLoadError, match=rf"the field general\.sampling\.{key} must be .*, got {value!r}"):
        convert_file(path)


def test_qwen3_nexts_queries_keys_values_and_gates_are_beside_their_head():
    """New files have them apart, older ones as the model has them."""
    keys, size, wide = 2, 3, 8  # of a key head: two value heads of four rows
    settings = {"num_hidden_layers": 1, "linear_num_key_heads": keys, "linear_num_value_heads": 4}
    settings |= {"linear_key_head_dim": size, "linear_value_head_dim": 4}
    whole = np.arange(keys * 2 * (size + wide))[:, None]
    parts = np.split(whole.reshape(keys, -1, 1), np.cumsum((size, size, wide)), 1)
    queries, keys_, values, gates = (part.reshape(-1, 1) for part in parts)
    stored = {"attn_qkv": np.concatenate([queries, keys_, values]), "attn_gate": gates, "ssm_in": whole}
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    for sources in (("attn_qkv", "attn_gate"), ("ssm_in",)):
        tensors = {f"blk.0.{source}.weight": stored[source] for source in sources}
        recipe = Recipes("qwen3next", settings, tensors, NEXT_WAYS, NEXT, 1).find(name)
        assert recipe is not None
        assert recipe.rows
        assert np.array_equal(recipe.join([tensors[source] for source in recipe.sources]), whole)
