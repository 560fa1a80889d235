"""`--model NAME=MODEL`: how it is read, and whether models fit into memory side by side."""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tailrace.base.config_sources import load_config
from tailrace.cli import local, memory_fit
from tailrace.cli.flags import add_config_flags, read_config
from tailrace.cli.local import prepare
from tailrace.config import SECTIONS, CacheConfig, Config, EngineConfig, ModelConfig, SpeculationConfig
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models.footprint import block_bytes, weights_bytes
from tailrace.models.tensors import SIZES, NewTensor, write_tensors

GIB = 1 << 30


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch):
    monkeypatch.delenv("TAILRACE_MODEL_MODEL", raising=False)


def read(*argv: str) -> Config:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, SECTIONS, several=True)
    return read_config(parser.parse_args(argv))


def test_one_without_a_name_is_as_ever():
    config = read("--model", "some/model", "--dtype", "float32")
    assert (config.model.model, config.models) == ("some/model", {})
    assert read().model.model is None


def test_several_with_settings_of_their_own():
    config = read(
        "--model",
        "a=one/model",
        "--model",
        "b=/two.gguf,dtype=float32,drafter=ngram,max-drafts=3,adaptive-drafts=false",
        "--model",
        "c=,memory-gib=0.5,grammar-workers=1",
        "--dtype",
        "float16",
        "--max-num-seqs",
        "4",
    )
    a, b, c = config.models.values()
    assert [(m.model.name, m.model.model, m.model.dtype) for m in (a, b, c)] == [
        ("a", "one/model", "float16"),
        ("b", "/two.gguf", "float32"),
        ("c", None, "float16"),
    ]
    assert (b.speculation.drafter, b.speculation.max_drafts, b.speculation.adaptive) == ("ngram", 3, False)
    assert (a.speculation.drafter, a.cache.memory_gib, c.cache.memory_gib, c.grammar.workers) == ("none", 0.0, 0.5, 1)
    assert {m.scheduler.max_num_seqs for m in (a, b, c)} == {4}


def test_one_may_have_a_name_too():
    assert list(read("--model", "a=one/model").models) == ["a"]


def test_a_path_with_an_equals_sign_is_a_path(tmp_path):
    folder = tmp_path / "a=b"
    folder.mkdir()
    assert read("--model", str(folder)).model.model == str(folder)
    assert read("--model", "/no/such=1").model.model == "/no/such=1"


def test_one_of_several_may_have_several_adapters():
    [a, _] = read("--model", "a=x,lora=p=/one,lora=q=/two", "--model", "b=y").models.values()
    assert a.model.adapters == {"p": "/one", "q": "/two"}


def test_a_model_may_have_several_names():
    model = read("--model", "some/model", "--served-model-name", "a", "b/c", "--aliases", "d", "--aliases", "e,f").model
    assert (model.name, model.other_names) == ("a", ["b/c", "d", "e", "f"])
    model = read("--served-model-name", "a").model
    assert (model.name, model.other_names) == ("a", [])
    [a, b] = read("--model", "a=x,aliases=p,aliases=q", "--model", "b=y").models.values()
    assert (a.model.other_names, b.model.other_names) == (["p", "q"], [])


def test_names_differ(tmp_path, monkeypatch):
    prepared = lambda config: local.PreparedModel(config, tmp_path, config.model.name, None, config.model)  # noqa: E731
    monkeypatch.setattr(local, "prepare", prepared)
    for argv in (
        ("--served-model-name", "a", "a"),
        ("--served-model-name", "a", "b", "b"),
        ("--served-model-name", "a", "b", "--lora", "b=/x"),
        ("--model", "a=x", "--model", "b=y", "--aliases", "c"),
    ):
        with pytest.raises(ConfigError, match="a name of its own, and several have"):
            local.prepare_all(read(*argv))
    with pytest.raises(ConfigError, match=r"model\.aliases \(--aliases\): a name must be"):
        local.prepare_all(read("--served-model-name", "a", "b c"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--model", "a=x", "--model", "y"), "--model y: of several models each needs a name"),
        (("--model", "y", "--model", "z"), "--model y: of several"),
        (("--model", "a=x", "--model", "a=y"), "another model of the name 'a'"),
        (("--model", "a=x,colour=red"), "'colour=red' is no setting.*dtype"),
        (("--model", "a=x,dtyp=float32"), "did you mean dtype"),
        (("--model", "a=x,dtype"), "'dtype' is no setting"),
        (("--model", "a=x,port=1"), "'port=1' is no setting"),
        (("--model", "a=x,max-drafts=1,max-drafts=2"), "max-drafts is set twice"),
        (("--model", "a=x,served-model-name=b"), "is no setting"),
        (("--model", "a=x,dtype=int4"), "int4"),
        (("--model", "a=x,max-num-seqs=0"), "max_num_seqs .*at least 1"),
        (("--model", "a=x", "--served-model-name", "b"), "has its name already"),
    ],
)
def test_what_can_not_be_meant(argv, said):
    with pytest.raises(ConfigError, match=said):
        read(*argv)


def test_a_command_that_runs_one_says_so():
    with pytest.raises(ConfigError, match="name others: a, b"):
        prepare(load_config({"models": {"a": {}, "b": {}}}, env={}))


def test_a_command_that_runs_one_loads_no_adapter(tmp_path, monkeypatch, caplog):
    asked = []
    monkeypatch.setattr(local.SyncClient, "close", lambda client: None)
    monkeypatch.setattr(local.SyncClient, "start", lambda client: asked.append(client._config))
    model = ModelConfig(model="m", name="m", lora="x=/x", dtype="float32")
    for settings in (Config(model=model), Config(model=msgspec.structs.replace(model, lora=""))):
        with local.engine(local.PreparedModel(settings, tmp_path, "m", None, settings.model)):  # type: ignore[arg-type]
            pass
    assert asked == [Config(model=msgspec.structs.replace(model, lora="")).engine] * 2
    assert [record.message for record in caplog.records] == [
        "model.lora: adapters are for tailrace serve; none is loaded here"
    ]


# ---- memory


def write_zeros(file: Path, **tensors: tuple[str, list[int]]) -> None:
    """A safetensors file of zeros: name → dtype and shape."""
    zeros = [
        NewTensor(name, dtype, tuple(shape), partial(lambda size: [bytes(size)], math.prod(shape) * SIZES[dtype]))
        for name, (dtype, shape) in tensors.items()
    ]
    write_tensors(file, zeros, lambda count: None)


def model_folder(path: Path, *, tied: bool = False) -> Path:
    """A model of 1,000 · 64 · 2 weights in bfloat16 and as many ids, of 2 layers with 2 heads of 16 for keys and
    values."""
    path.mkdir()
    weights = {"embed": ("BF16", [1000, 64]), "other": ("F32", [1000, 64]), "ids": ("I64", [10])}
    write_zeros(path / "model.safetensors", **weights)
    config = {
        "vocab_size": 1000,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_folders_weights(tmp_path):
    plain, tied = model_folder(tmp_path / "plain"), model_folder(tmp_path / "tied", tied=True)
    assert weights_bytes(plain, 2, packed=True) == 128_000 * 2 + 80
    assert weights_bytes(plain, 4, packed=True) == 128_000 * 4 + 80
    assert weights_bytes(tied, 2, packed=True) == 192_000 * 2 + 80
    assert weights_bytes(tied, 2, packed=False) == 128_000 * 2 + 80
    assert block_bytes(plain, 16, 2) == 2 * 2 * 2 * 16 * 16 * 2
    (plain / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelLoadError, match="can't be read"):
        weights_bytes(plain, 2, packed=False)


@pytest.mark.parametrize(("method", "dtype", "floats"), [("fp8", "F8_E4M3", 1), ("mxfp4", "U8", 2), ("other", "U8", 0)])
def test_weights_that_are_widened_at_load_count_as_what_they_become(tmp_path, method, dtype, floats):
    folder = model_folder(tmp_path / "it")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    write_zeros(folder / "model.safetensors", blocks=(dtype, [1000, 64]))
    assert weights_bytes(folder, 2, packed=False) == 64_000 * (floats * 2 or 1)


def test_only_the_files_of_the_index_count(tmp_path):
    folder = model_folder(tmp_path / "it")
    whole = weights_bytes(folder, 2, packed=False)
    (folder / "model.fp32-00001.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert weights_bytes(folder, 2, packed=False) == whole
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(("embed", "other", "ids"), "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_bytes(folder, 2, packed=False) == whole


def test_a_real_folders_are_those_of_the_loaded_model(tmp_path):
    """Against the runner's own block and the parameters that transformers has."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tailrace.runners.load_transformers import load_transformers

    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        dtype=torch.bfloat16,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    runner = load_transformers(ModelConfig(dtype="bfloat16", device="cpu", threads=1), tmp_path, block_size=16)
    assert block_bytes(tmp_path, 16, 2) == runner.block_bytes
    assert weights_bytes(tmp_path, 2, packed=True) == 2 * sum(p.numel() for p in model.parameters())


def engine(**cache) -> EngineConfig:
    return EngineConfig(model=ModelConfig(device="cpu"), cache=CacheConfig(**cache))


def test_what_is_left_is_shared(tmp_path):
    folder = model_folder(tmp_path / "m")
    models = [
        ("a", engine(), folder),
        ("b", engine(), folder),
        ("c", engine(num_blocks=4), folder),
        ("d", engine(), None),
    ]
    sure = 3 * (128_000 * 2 + 80) + 4 * block_bytes(folder, 16, 2) + 4 * memory_fit.PROCESS_BYTES
    found = memory_fit.fit_into_memory(models, lambda device: sure + 10 * GIB)
    share = memory_fit.cache_size.SHARE * 10 / 2
    assert [one.cache.memory_gib for one in found] == pytest.approx([share, share, 0, 0])
    assert found[2].cache.num_blocks == 4
    rest = 10 - 2 * share
    assert [one.cache.memory_growth_gib for one in found] == pytest.approx([0.5 * rest / 4] * 4)
    kept = memory_fit.fit_into_memory([("a", engine(memory_growth_gib=3.0), folder)], lambda device: sure + GIB)
    assert kept[0].cache.memory_growth_gib == 3.0


def test_weights_that_a_drafter_has_no_use_for_are_not_counted(tmp_path):
    folder = model_folder(tmp_path / "m")
    needs = [
        memory_fit.memory_need("a", EngineConfig(model=ModelConfig(device="cpu"), speculation=speculation), folder)
        for speculation in (SpeculationConfig(), SpeculationConfig(drafter="ngram", model="org/head"))
    ]
    assert needs[0] == needs[1]


def test_adapters_are_counted_as_they_are_loaded(tmp_path):
    folder, adapter = model_folder(tmp_path / "m"), tmp_path / "x"
    adapter.mkdir()
    write_zeros(adapter / "adapter_model.safetensors", a=("F32", [4, 64]), b=("F32", [64, 4]))
    plain, adapted = (
        memory_fit.memory_need("a", EngineConfig(model=ModelConfig(device="cpu", dtype="bfloat16", lora=lora)), folder)
        for lora in ("", f"x={adapter}, y={adapter}, z={tmp_path / 'nowhere'}")
    )
    assert adapted.weights - plain.weights == 2 * 2 * (64 * 64 + 64 * 4)  # outputs are packed by 64


def test_those_that_do_not_fit_are_told_apart(tmp_path):
    """One byte less than what is sure is refused, and it says who needs how much."""
    folder = model_folder(tmp_path / "m")
    models = [("a", engine(), folder), ("b", engine(memory_gib=2.0), folder)]
    blocks = min(2 * GIB, 64 * 8 * block_bytes(folder, 16, 2))  # 64 sequences of 128 positions take no more
    sure = 2 * (128_000 * 2 + 80) + blocks + 2 * memory_fit.PROCESS_BYTES
    memory_fit.fit_into_memory(models, lambda device: sure)
    with pytest.raises(ConfigError) as refused:
        memory_fit.fit_into_memory(models, lambda device: sure - 1)
    said = str(refused.value)
    assert "a 0.40 GiB (weights 0.00, KV cache a share of what is left, process 0.40)" in said
    assert "b 0.4" in said
    assert "are left" in said


def test_each_device_counts_for_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_fit, "gpus", lambda: [5 * GIB, GIB])
    folder = model_folder(tmp_path / "m")
    on = [
        ("a", EngineConfig(model=ModelConfig(device="auto")), folder),
        ("b", EngineConfig(model=ModelConfig(device="cuda:1")), folder),
    ]
    first, second = memory_fit.fit_into_memory(on)
    assert first.cache.memory_gib > 4 * second.cache.memory_gib > 0
    hosts = memory_fit.fit_into_memory(
        on, lambda device: 80 * GIB
    )  # requests take the host's memory wherever the model is
    assert [one.cache.memory_growth_gib for one in hosts] == pytest.approx([0.5 * 80 / 2] * 2)
    with pytest.raises(ConfigError, match="'cuda:2' is not available"):
        memory_fit.fit_into_memory([("a", EngineConfig(model=ModelConfig(device="cuda:2")), folder)])
