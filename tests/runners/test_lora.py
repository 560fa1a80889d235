"""LoRA adapters by rows: each gives what a model with merged weights gives, and no bits depend on the other rows."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tailrace.config import CacheConfig, ModelConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.params import SamplingParams
from tailrace.runners.base import Batch
from tailrace.runners.load_transformers import load_transformers
from tailrace.runners.transformers import TransformersRunner
from tailrace.wire.messages import Failed, ModelInfo, Submit, Tokens

VOCAB, BLOCK = 97, 16
TARGETS = {
    "x": ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"),
    "y": ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj"),
}


def base_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.15,
    )
    return LlamaForCausalLM(config).eval()


def adapter(folder: Path, model: LlamaForCausalLM, targets, rank: int, seed: int, **config) -> LlamaForCausalLM:
    """An adapter in PEFT's format, written by hand; and the model with it merged."""
    generator = torch.Generator().manual_seed(seed)
    merged, tensors = copy.deepcopy(model), {}
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 12,
        "target_modules": [t.rpartition(".")[2] for t in targets],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    } | config
    for layer in range(model.config.num_hidden_layers):
        for target in targets:
            path = f"model.layers.{layer}.{target}"
            linear = merged.get_submodule(path)
            down = torch.randn(rank, linear.in_features, generator=generator) * 0.2
            up = torch.randn(linear.out_features, rank, generator=generator) * 0.2
            tensors[f"base_model.model.{path}.lora_A.weight"], tensors[f"base_model.model.{path}.lora_B.weight"] = (
                down,
                up,
            )
            alpha = next(
                (a for key, a in config.get("alpha_pattern", {}).items() if path.endswith(key)), config["lora_alpha"]
            )
            linear.weight.data += alpha / (math.sqrt(rank) if config.get("use_rslora") else rank) * up @ down
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return merged


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> tuple[Path, dict[str, LlamaForCausalLM]]:
    """A folder with the model "m" and its adapters; all of them merged, and the model itself as ""."""
    folder, model = tmp_path_factory.mktemp("lora"), base_model()
    model.save_pretrained(folder / "m")
    x = adapter(folder / "x", model, TARGETS["x"], 4, 5)
    y = adapter(folder / "y", model, TARGETS["y"], 8, 6, use_rslora=True, alpha_pattern={"o_proj": 3})
    return folder, {"": model, "x": x, "y": y}


def load(folder: Path, dtype: str = "float32", lora: str | None = None, device: str = "cpu") -> TransformersRunner:
    lora = f"x={folder / 'x'}, y={folder / 'y'}" if lora is None else lora
    return load_transformers(
        ModelConfig(dtype=dtype, threads=1, device=device, lora=lora), folder / "m", block_size=BLOCK
    )


def bag(sequences: list[tuple[str, list[int]]], names: tuple[str, ...]) -> Batch:
    """Whole prompts side by side, each in blocks of its own, all logits wanted."""
    tokens, positions, slots, starts, tables = [], [], [], [0], []
    adapted: dict[int, list[int]] = {}
    for place, (name, ids) in enumerate(sequences):
        if name:
            adapted.setdefault(names.index(name) + 1, []).extend(range(len(tokens), len(tokens) + len(ids)))
        first = place * 4
        tokens += ids
        positions += range(len(ids))
        slots += [first * BLOCK + i for i in range(len(ids))]
        starts.append(len(tokens))
        tables.append([first, first + 1, first + 2, first + 3])
    return Batch(
        torch.tensor(tokens),
        torch.tensor(positions),
        torch.tensor(slots),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([len(ids) for _, ids in sequences], dtype=torch.int32),
        torch.tensor(tables, dtype=torch.int32),
        torch.arange(len(tokens)),
        adapted=tuple((n, torch.tensor(rows)) for n, rows in sorted(adapted.items())),
    )


def ids_of(seed: int, count: int) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


SEQUENCES = [("x", ids_of(1, 21)), ("", ids_of(2, 33)), ("y", ids_of(3, 5)), ("x", ids_of(4, 1)), ("", ids_of(5, 7))]


def test_each_row_has_the_logits_of_its_merged_model(place):
    folder, merged = place
    runner = load(folder)
    runner.allocate(64)
    logits = runner.forward(bag(SEQUENCES, runner.adapters)).split([len(ids) for _, ids in SEQUENCES])
    for (name, ids), ours in zip(SEQUENCES, logits, strict=True):
        with torch.no_grad():
            theirs = {other: model(torch.tensor([ids])).logits[0] for other, model in merged.items()}
        error = {other: ((ours - rows).norm() / rows.norm()).item() for other, rows in theirs.items()}
        assert error[name] < 1e-5
        assert min(wrong for other, wrong in error.items() if other != name) > 1e-2  # or this test could not fail


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nobodys_bits_depend_on_anothers_adapter(place, dtype):
    folder, _ = place
    runner = load(folder, dtype)
    runner.allocate(64)
    together = runner.forward(bag(SEQUENCES, runner.adapters)).split([len(ids) for _, ids in SEQUENCES])
    together = [rows.clone() for rows in together]
    for sequence, rows in zip(SEQUENCES, together, strict=True):
        assert torch.equal(runner.forward(bag([sequence], runner.adapters)), rows)
    without = [("", ids) if name == "y" else (name, ids) for name, ids in SEQUENCES]
    for (name, _), rows, before in zip(
        SEQUENCES,
        runner.forward(bag(without, runner.adapters)).split([len(i) for _, i in SEQUENCES]),
        together,
        strict=True,
    ):
        assert torch.equal(rows, before) == (name != "y")


def engine_of(folder: Path) -> Engine:
    runner = load(folder)
    return Engine(runner, ModelInfo("m", VOCAB, 256, []), CacheConfig(num_blocks=64), SchedulerConfig(max_num_seqs=8))


def says(engine: Engine, asks: list[tuple[str, list[int]]]) -> list[tuple[list[int], int]]:
    """The tokens of each ask, and how many of its prompt's were cached; all at once."""
    for place, (name, ids) in enumerate(asks):
        engine.submit(
            Submit(str(place), 1, ids, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True), adapter=name)
        )
    found: list[tuple[list[int], int]] = [([], 0) for _ in asks]
    while engine.has_work:
        for event in engine.step().get(b"", []):
            assert not isinstance(event, Failed), event
            if isinstance(event, Tokens):
                tokens, cached = found[int(event.id)]
                found[int(event.id)] = ([*tokens, *event.token_ids], max(cached, event.cached_tokens))
    return found


def alone(model: LlamaForCausalLM, ids: list[int]) -> list[int]:
    said = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=20,
        eos_token_id=None,
        pad_token_id=0,
    )
    return said[0, len(ids) :].tolist()


def test_an_engine_serves_all_of_them_at_once(place):
    folder, merged = place
    asks = [(name, ids_of(20 + i, 12 + i)) for i, name in enumerate(["x", "", "y", "x"])]
    for (name, ids), (tokens, _) in zip(asks, says(engine_of(folder), asks), strict=True):
        assert tokens == alone(merged[name], ids)


def test_what_one_has_computed_is_not_anothers(place):
    """The prefix cache: the same prompt again is found by the same adapter alone."""
    folder, merged = place
    engine, prompt = engine_of(folder), ids_of(9, 40)
    for name, cached in (("x", 0), ("", 0), ("y", 0), ("x", 32), ("", 32), ("y", 32)):
        [(tokens, found)] = says(engine, [(name, prompt)])
        assert (tokens, found) == (alone(merged[name], prompt), cached)


def test_an_adapter_that_is_not_there_is_refused(place):
    folder, _ = place
    engine = engine_of(folder)
    engine.submit(Submit("r", 1, [1, 2], SamplingParams(), adapter="z"))
    [refused] = engine.step()[b""]
    assert isinstance(refused, Failed)
    assert 'no adapter "z"' in refused.message


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"peft_type": None}, "peft_type None"),
        ({"kasa_config": {"beta": 1.0}}, "kasa_config is not a known setting"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"lora_alpha": None}, "lora_alpha and alpha_pattern must be"),
        ({"alpha_pattern": {"q_proj": "2"}}, "lora_alpha and alpha_pattern must be"),
        ({"r": 3}, "model.layers.0.*has rank 4, but r is 3"),
        ({"r": "4"}, "r and rank_pattern must be positive integers"),
        ({"r": True}, "r and rank_pattern must be positive integers"),
        ({"rank_pattern": [4]}, "rank_pattern must be a table"),
        ({"rank_pattern": {"q_proj": 0}}, "r and rank_pattern must be positive integers"),
        ({"use_rslora": "yes"}, "use_rslora must be true or false"),
    ],
)
def test_what_is_no_plain_lora_is_refused(place, tmp_path, config, said):
    folder, merged = place
    adapter(tmp_path / "z", merged[""], TARGETS["x"], 4, 5)
    path = tmp_path / "z" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(ModelLoadError, match=f"lora z: {said}"):
        load(folder, lora=f"z={tmp_path / 'z'}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensor: (tensor * 10).to(torch.int8), r"matrix of floats, got int8 \(4, 64\)"),
        (lambda tensor: tensor > 0, "matrix of floats, got bool"),
        (lambda tensor: tensor.to(torch.float8_e4m3fn), "matrix of floats, got float8_e4m3fn"),
        (lambda tensor: tensor.to(torch.complex64), "matrix of floats, got complex64"),
        (lambda tensor: tensor.sum(), r"matrix of floats, got float32 \(\)"),
        (lambda tensor: tensor.flatten(), r"matrix of floats, got float32 \(256,\)"),
        (lambda tensor: tensor[None], r"matrix of floats, got float32 \(1, 4, 64\)"),
    ],
)
def test_an_adapter_of_other_tensors_is_refused(place, tmp_path, change, said):
    from safetensors.torch import load_file

    folder, merged = place
    adapter(tmp_path / "z", merged[""], ("self_attn.q_proj",), 4, 5)
    path = tmp_path / "z" / "adapter_model.safetensors"
    save_file({key: change(tensor).contiguous() for key, tensor in load_file(path).items()}, path)
    with pytest.raises(ModelLoadError, match=f"lora z: lora_A of model.layers.*q_proj must be a {said}"):
        load(folder, lora=f"z={tmp_path / 'z'}")


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_an_adapter_of_no_numbers_is_refused(place, tmp_path, part):
    from safetensors.torch import load_file

    folder, merged = place
    adapter(tmp_path / "z", merged[""], ("self_attn.q_proj",), 4, 5)
    path = tmp_path / "z" / "adapter_model.safetensors"
    tensors = load_file(path)
    for key, tensor in tensors.items():
        if part in key:
            tensor[0, 0] = float("nan")
    save_file(tensors, path)
    with pytest.raises(
        ModelLoadError, match=r"lora z: model.layers.*q_proj is changed by numbers that are NaN or infinite"
    ):
        load(folder, lora=f"z={tmp_path / 'z'}")


@pytest.mark.parametrize(
    ("rename", "said"),
    [
        (lambda key: key.replace("q_proj", "r_proj"), "the model has no model.layers.0.self_attn.r_proj"),
        (lambda key: key.replace("lora_A", "lora_embedding_A"), "is not supported"),
        (lambda key: key.replace("model.layers.0.self_attn.q_proj", "lm_head"), "lm_head is no linear layer within"),
        (lambda key: None if "lora_B" in key else key, "lacks its lora_B"),
        (lambda key: key.replace("q_proj", "k_proj"), "k_proj is 32 × 64"),
        (lambda key: None, "holds nothing"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(place, tmp_path, rename, said):
    from safetensors.torch import load_file

    folder, merged = place
    adapter(tmp_path / "z", merged[""], ("self_attn.q_proj",), 4, 5)
    path = tmp_path / "z" / "adapter_model.safetensors"
    save_file({new: tensor for key, tensor in load_file(path).items() if (new := rename(key))}, path)
    with pytest.raises(ModelLoadError, match=said):
        load(folder, lora=f"z={tmp_path / 'z'}")


def test_what_is_not_there_is_said(place, tmp_path):
    folder, _ = place
    with pytest.raises(ModelLoadError, match=r"lora z: .*adapter_config.json can't be read"):
        load(folder, lora=f"z={tmp_path}")
    for lora in ("z", "z=", "=p", "z=p,z=q", "a b=p"):
        with pytest.raises(ConfigError, match="NAME=FOLDER"):
            _ = ModelConfig(lora=lora).adapters
