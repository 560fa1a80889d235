"""Keys and values in eight bits: what is stored of a token depends on the token alone, so every schedule gives the same
bits; and what the cache takes, says and refuses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.harness import Fickle, Harness
from runners.tiny_models import COMMON, VOCAB, save
from tailrace.cli.memory_fit import memory_need
from tailrace.config import CacheConfig, EngineConfig, ModelConfig
from tailrace.drafting.ngram import NGram
from tailrace.engine.cache_size import num_blocks
from tailrace.errors import ConfigError
from tailrace.kernels.cache import KVCache
from tailrace.models.footprint import SCALE_BYTES, block_bytes
from tailrace.runners import load_runner
from tailrace.runners.flat_batch import FlatTokens, block_table
from tailrace.runners.load_checks import pick_kv_code
from tailrace.runners.transformers import TransformersRunner

COUNT = 24
PROMPTS = [[5, 9, 33, 7, 100, 2] * 5, [(7 * i * i + 3) % VOCAB for i in range(70)], [77, 3], [200, 31, 8] * 9]
WAYS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}, {"temperature": 1.5, "seed": 8}]
# sinks and windows; latent attention; keys that layers share; layers with states beside those with keys
CASES = [("gpt-oss", "fp8"), ("deepseek-v3", "int8"), ("gpt-oss", "int8"), ("gemma4 text", "int8"), ("qwen3.5", "int8")]
QUICK = CASES[:1]
STATES = ("qwen3.5",)
SCHEDULES: dict[str, dict[str, Any]] = {
    "batched": {},
    "small chunks": {"max_num_batched_tokens": 23},
    "one pass, overlapped": {"max_num_batched_tokens": 512, "overlap": "on"},
    "preempted": {"num_blocks": 14},
    "no prefixes": {"prefix_reuse": False},
    "other blocks": {"block_size": 32},
    "n-grams": {"drafter": lambda _: NGram()},
}


def load(folder: Path, kv_cache_dtype: str = "auto", block_size: int = 16, **options: Any) -> TransformersRunner:
    config = ModelConfig(kv_cache_dtype=kv_cache_dtype, threads=1, device="cpu", **options)  # pyright: ignore
    runner = load_runner(config, folder, block_size=block_size)
    assert isinstance(runner, TransformersRunner)
    return runner


class Model:
    """One model, and what it says to every prompt when nobody else is there."""

    def __init__(self, folder: Path, code: str, states: bool) -> None:
        self.folder, self.code, self.states = folder, code, states
        self.runners = {16: load(folder, code)}
        self.alone = self.said(PROMPTS, WAYS, max_num_seqs=1, max_num_batched_tokens=512, prefix_reuse=False)

    def said(self, prompts: list[list[int]], ways: list[dict[str, Any]], **options: Any) -> list[list[int]]:
        size = options.get("block_size", 16)
        if size not in self.runners:
            self.runners[size] = load(self.folder, self.code, size)
        harness = Harness(self.runners[size], **({"num_blocks": 96, "max_num_batched_tokens": 48} | options))
        asked = [(prompt, way) for prompt in prompts for way in ways]
        for i, (prompt, way) in enumerate(asked):
            harness.submit(str(i), prompt, max_tokens=COUNT, ignore_eos=True, **way)
        stories = harness.run()
        return [stories[str(i), 0, 0].tokens for i in range(len(asked))]


@pytest.fixture(
    scope="module",
    params=[case if case in QUICK else pytest.param(case, marks=pytest.mark.long) for case in CASES],
    ids=str,
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    name, code = request.param
    return Model(save(name, tmp_path_factory.mktemp("model")), code, name in STATES)


def test_the_model_says_something_and_codes_are_kept(model: Model):
    assert len({token for tokens in model.alone for token in tokens}) > 30
    cache = model.runners[16].paged.layers.caches[0]
    assert cache.keys.dtype == cache.values.dtype == pick_kv_code(model.code, torch.device("cpu"))
    assert cache.scales is not None


@pytest.mark.few(4)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_gives_the_same_tokens(model: Model, name: str):
    options = SCHEDULES[name]
    if model.states and "prefix_reuse" in options:
        pytest.skip("states have no prefixes")
    assert model.said(PROMPTS, WAYS, **options) == model.alone


@pytest.mark.few(2)
def test_drafts_that_are_rejected(model: Model):
    greedy = model.alone[:: len(WAYS)]
    fickle = Fickle([prompt + tokens for prompt, tokens in zip(PROMPTS, greedy, strict=True)], 0.6)
    assert model.said(PROMPTS, WAYS, drafter=lambda _: fickle) == model.alone
    assert fickle.offered


@pytest.mark.few(2)
def test_a_prefix_that_is_there_already(model: Model):
    if model.states:
        pytest.skip("states have no prefixes")
    harness = Harness(model.runners[16], num_blocks=96, max_num_batched_tokens=48)
    for round_ in range(2):
        harness.submit(str(round_), PROMPTS[1], max_tokens=COUNT, ignore_eos=True)
        harness.run()
    assert harness.stories["1", 0, 0].cached == 64
    assert [story.tokens for story in harness.stories.values()] == [model.alone[len(WAYS)]] * 2


@pytest.mark.few(1)
def test_forks_take_their_scales_along(model: Model, monkeypatch: pytest.MonkeyPatch):
    """Of three siblings, two write into copies of the prompt's last block, which is full in part only."""

    def forked() -> list[list[int]]:
        harness = Harness(model.runners[16], num_blocks=96, max_num_batched_tokens=96)
        harness.submit("a", PROMPTS[1], n=3, max_tokens=COUNT, ignore_eos=True, temperature=1.0, seed=5)
        stories = harness.run()
        return [stories["a", 0, i].tokens for i in range(3)]

    expected = forked()
    apart = model.said([PROMPTS[1]], [{"temperature": 1.0, "seed": 5}], max_num_seqs=1, max_num_batched_tokens=512)
    assert expected[0] == apart[0]
    assert expected == forked()

    def without_scales(cache: KVCache, source: torch.Tensor, target: torch.Tensor) -> None:
        for part in (cache.keys, cache.values):
            part.view(torch.uint8)[target] = part.view(torch.uint8)[source]

    if not model.states:  # these don't share blocks
        for cache in model.runners[16].paged.layers.caches:
            assert cache.scales is not None
            cache.scales.fill_(1.0)
        monkeypatch.setattr(KVCache, "copy_blocks", without_scales)
        assert forked() != expected


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=False)).to(torch.bfloat16).save_pretrained(folder)
    return folder


def logits_of(runner: TransformersRunner, parts: list[tuple[list[int], int]]) -> torch.Tensor:
    flat = FlatTokens()
    for tokens, end in parts:
        flat.add(tokens, end)
    flat.wanted = list(range(len(flat.token_ids)))
    tables = block_table([list(range(8 * i, 8 * i + 8)) for i in range(len(parts))])
    return runner.forward(flat.make_batch(tables.numpy(), 16)).clone()  # the next pass may overwrite them


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("code", ["int8", "fp8"])
def test_logits_are_near_and_their_bits_do_not_depend_on_the_cut(llama: Path, code: str, dtype: str):
    ids, plain, runner = PROMPTS[1], load(llama, dtype=dtype), load(llama, code, dtype=dtype)
    for each in (plain, runner):
        each.allocate(16)
    whole = logits_of(runner, [(ids, 70)])
    cut = [logits_of(runner, [(ids[a:b], b)]) for a, b in ((0, 1), (1, 34), (34, 35), (35, 70))]
    assert torch.equal(torch.cat(cut), whole)
    assert torch.equal(logits_of(runner, [(ids[::-1], 70), (ids, 70)])[70:], whole)
    away = (whole.float() - logits_of(plain, [(ids, 70)]).float()).std() / whole.float().std()
    assert 0 < away < {"int8": 0.02, "fp8": 0.1}[code]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("int8", torch.int8),
        ("int8_per_token_head", torch.int8),
        ("fp8", torch.float8_e4m3fn),
        ("fp8_e4m3", torch.float8_e4m3fn),
        ("fp8_per_token_head", torch.float8_e4m3fn),
    ],
)
def test_more_tokens_fit_into_the_memory_and_the_log_says_so(
    llama: Path, name: str, code: torch.dtype, caplog: pytest.LogCaptureFixture
):
    plain, runner = load(llama), load(llama, name)
    each = COMMON["num_hidden_layers"] * 2 * COMMON["num_key_value_heads"]  # heads of a position: head_dim 16
    assert (plain.block_bytes, runner.block_bytes) == (16 * each * 32, 16 * each * 20)
    assert runner.block_bytes == block_bytes(llama, 16, 1, SCALE_BYTES)
    config = CacheConfig(memory_gib=2**-10)
    assert num_blocks(config, runner.block_bytes, 10**6) == 2**20 // (16 * each * 20)
    needs = [
        memory_need(
            "m",
            EngineConfig(model=ModelConfig(device="cpu", kv_cache_dtype=kind), cache=CacheConfig(num_blocks=8)),
            llama,
        )  # pyright: ignore
        for kind in ("auto", name)
    ]
    assert [need.cache for need in needs] == [8 * plain.block_bytes, 8 * runner.block_bytes]
    with caplog.at_level(logging.INFO):
        runner.allocate(8)
    held = runner.paged.layers.caches[0]
    assert held.keys.dtype == code
    assert (
        sum(t.nbytes for c in runner.paged.layers.caches for t in (c.keys, c.values, c.scales))
        == 8 * runner.block_bytes
    )  # pyright: ignore
    kind = str(code).removeprefix("torch.")
    assert f"KV cache in {kind}: 128 tokens in 0.00 GiB, {each * 20} bytes each; bfloat16 would take {each * 32}" in (
        caplog.text
    )


def test_where_it_can_not_be_it_is_refused_by_name(tmp_path: Path):
    for name in ("int8", "fp8"):
        with pytest.raises(ConfigError, match=rf"model\.kv_cache_dtype {name} \(--kv-cache-dtype\) has kernels on the"):
            pick_kv_code(name, torch.device("cuda"))
    assert pick_kv_code("auto", torch.device("cuda")) is None
    with pytest.raises(ConfigError, match=r"model\.kv_cache_dtype int8 \(--kv-cache-dtype\): Mamba.* has no KV cache"):
        load(save("mamba", tmp_path), "int8")
