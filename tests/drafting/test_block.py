"""Block-parallel heads: their arithmetic against the same written down plainly, their caches against a fresh start, and
what is refused."""

from __future__ import annotations

import random

import pytest
import torch

from drafting.heads import (
    HIDDEN,
    LAYERS,
    TARGET,
    VOCAB,
    Argmax,
    Weights,
    attention,
    check_histories,
    drafted,
    hidden_states,
    layer_weights,
    llama_config,
    mlp,
    observe,
    rms,
    save,
)
from tailrace.drafting import block
from tailrace.drafting.base import Drafter, DraftRequest
from tailrace.drafting.block import BlockDrafter
from tailrace.drafting.block_head import BlockHead
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.errors import ModelLoadError
from tailrace.params import SamplingParams
from tailrace.sampling import Sampler, Slots

BLOCK, MASK, CAPTURED, WINDOW = 6, 60, [1, 4, 6], 7


def dflash(section: dict[str, object] | None = None, **config: object) -> tuple[dict, Weights]:
    torch.manual_seed(4)
    weights = {
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN) * 0.2,
        "hidden_norm.weight": 1 + 0.3 * torch.randn(HIDDEN),
        "norm.weight": 1 + 0.3 * torch.randn(HIDDEN),
    }
    for i in range(2):
        weights |= layer_weights(f"layers.{i}.", HIDDEN, "input_layernorm", qk_norm=True)
    settings = {"mask_token_id": MASK, "target_layer_ids": CAPTURED} | (section or {})
    more = {"model_type": "qwen3", "num_hidden_layers": 2, "num_target_layers": LAYERS, "block_size": BLOCK}
    return llama_config(**more, dflash_config=settings) | config, weights


def ends(config: dict, weights: Weights, size: int = VOCAB) -> tuple[dict, Weights]:
    weights |= {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN), "lm_head.weight": torch.randn(size, HIDDEN)}
    if size < VOCAB:
        weights["d2t"] = torch.arange(size) * 2
    return config, weights


def unnamed(config: dict, weights: Weights) -> tuple[dict, Weights]:
    """Of 8 layers, two drafting ones take the outputs of the second and of the fourth from the end."""
    del config["dflash_config"]["target_layer_ids"]
    weights["fc.weight"] = torch.randn(HIDDEN, 2 * HIDDEN) * 0.2
    return config, weights


HEADS = {
    "published": dflash,
    "a causal window": lambda: dflash(
        layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW, use_sliding_window=True
    ),
    "an open window": lambda: dflash(
        layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW, sliding_window_non_causal=True
    ),
    "windows everywhere": lambda: dflash({"use_swa": True, "swa_window_size": WINDOW, "causal": True}),
    "its own ends": lambda: ends(*dflash()),
    "its own vocabulary": lambda: ends(*dflash(draft_vocab_size=20), size=20),
    "layers not named": lambda: unnamed(*dflash()),
    "scales": lambda: dflash({"output_multiplier": 0.5, "final_logit_softcapping": 3.0, "input_embedding_scale": 2.0}),
}


def plain(config: dict, w: Weights, tokens: list[int], count: int, known: list[int]) -> torch.Tensor:
    """What the drafts after `tokens` are taken from, [count, V], with the target's states of the positions `known`."""
    section = config["dflash_config"]
    context = rms(
        hidden_states(tokens, w["fc.weight"].shape[1] // HIDDEN)[known] @ w["fc.weight"].T, w["hidden_norm.weight"]
    )
    before, last = torch.tensor(known), len(tokens) - 1
    at = torch.arange(last, last + BLOCK)
    stream = w.get("embed_tokens.weight", TARGET.embedding)[[tokens[-1]] + [MASK] * (BLOCK - 1)] * section.get(
        "input_embedding_scale", 1.0
    )
    where = torch.cat([before, at])
    for i in range(2):
        seen = torch.ones(BLOCK, len(where), dtype=torch.bool)
        if config.get("sliding_window_non_causal") and config["layer_types"][i] == "sliding_attention":
            seen = (where >= last - WINDOW).expand(BLOCK, -1)
        elif section.get("use_swa") or ("layer_types" in config and config["layer_types"][i] == "sliding_attention"):
            seen = (where <= at[:, None]) & (where > at[:, None] - WINDOW)
        x = rms(stream, w[f"layers.{i}.input_layernorm.weight"])
        mixed = attention(w, f"layers.{i}.", x, at, torch.cat([context, x]), where, seen)
        stream = mlp(w, f"layers.{i}.", stream + mixed)
    logits = rms(stream, w["norm.weight"]) @ w.get("lm_head.weight", TARGET.weight).T
    if "d2t" in w:
        small, logits = logits, torch.full((BLOCK, VOCAB), float("-inf"))
        logits[:, torch.arange(small.shape[1]) + w["d2t"]] = small
    logits = logits * section.get("output_multiplier", 1.0)
    cap = section.get("final_logit_softcapping")
    logits = torch.tanh(logits / cap) * cap if cap else logits
    return logits[1 : 1 + count]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """name → (config, weights, a function that makes a drafter)."""
    folders: dict[str, tuple] = {}

    def make(name: str):
        if name not in folders:
            config, weights = HEADS[name]()
            head = BlockHead.load(save(tmp_path_factory.mktemp("head"), config, weights), TARGET)
            folders[name] = (config, weights, lambda: BlockDrafter(head, Argmax(), 24, 16))
        return folders[name]

    return make


def some(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_what_the_paper_says(name, made):
    config, weights, make = made(name)
    drafter, tokens = make(), some(37)
    observe(drafter, (5, tokens, 0, 36))
    (got,) = drafted(drafter, (5, tokens, BLOCK - 1))
    torch.testing.assert_close(got, plain(config, weights, tokens, BLOCK - 1, list(range(36))), atol=2e-4, rtol=2e-4)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["published", "a causal window", "an open window"])
@pytest.mark.parametrize("seed", range(4))
def test_any_history_leaves_what_a_fresh_start_would(name, seed, made):
    assert check_histories(made(name)[2], BLOCK - 1, seed) > 20


def test_positions_that_were_never_seen_are_missing_and_nothing_else_changes(made):
    config, weights, make = made("published")
    drafter, tokens = make(), some(60)
    observe(drafter, (1, tokens, 20, 10))
    observe(drafter, (1, tokens, 41, 18))
    (got,) = drafted(drafter, (1, tokens, 3))
    known = [*range(20, 30), *range(41, 59)]
    torch.testing.assert_close(got, plain(config, weights, tokens, 3, known), atol=2e-4, rtol=2e-4)
    assert not torch.allclose(got, plain(config, weights, tokens, 3, list(range(59))), atol=1e-2)


def test_where_the_last_position_was_not_seen_nothing_is_drafted(made):
    _, _, make = made("published")
    drafter, tokens = make(), some(30)
    observe(drafter, (0, tokens, 0, 20))
    assert len(drafted(drafter, (0, tokens, 3))[0]) == 0
    observe(drafter, (0, tokens, 20, 9))
    assert len(drafted(drafter, (0, tokens, 3))[0]) == 3
    drafter.remove(0)
    drafter.remove(8)
    assert len(drafted(drafter, (0, tokens, 3))[0]) == 0
    assert len(drafter.context.pages.free) == 24


def test_a_block_has_an_end_and_a_shorter_wish_changes_no_draft(made):
    _, _, make = made("published")
    drafter, tokens = make(), some(20)
    observe(drafter, (0, tokens, 0, 19))
    (most,) = drafted(drafter, (0, tokens, 30))
    assert len(most) == BLOCK - 1
    assert torch.equal(drafted(drafter, (0, tokens, 2))[0], most[:2])


def test_without_room_for_the_block_there_are_no_drafts(made):
    head = made("published")[2]().head
    drafter, one, two = BlockDrafter(head, Argmax(), 2, 16), some(12, 1), some(9, 2)
    observe(drafter, (0, one, 0, 11), (1, two, 0, 8))
    got = drafted(drafter, (0, one, 3), (1, two, 3))
    assert [len(each) for each in got] == [0, 3]  # 11 + 6 positions don't fit a block, 8 + 6 do


def test_groups_change_nothing(made, monkeypatch):
    _, _, make = made("published")
    drafter, prompts = make(), [some(10 + i, i) for i in range(4)]
    observe(drafter, *((i, tokens, 0, len(tokens) - 1) for i, tokens in enumerate(prompts)))
    asks = [(i, tokens, 1 + i) for i, tokens in enumerate(prompts)]
    together = drafted(drafter, *asks)
    monkeypatch.setattr(block, "ROWS", 3)
    apart = drafted(drafter, *asks)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    assert list(block.group_by_rows([0, 2, 3], [2, 9, 1, 5])) == [[0, 2], [3]]


def test_it_is_a_drafter_that_wants_the_right_layers(made):
    drafter = made("published")[2]()
    assert isinstance(drafter, Drafter)
    assert drafter.captures == tuple(CAPTURED)
    assert drafter.head.position_bytes == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, their width, bytes


def test_the_bytes_of_its_caches(made):
    drafter = made("published")[2]()
    assert drafter.cache_bytes == sum(cache.keys.nbytes + cache.values.nbytes for cache in drafter.caches)


def test_proposals_are_of_their_own_place(made):
    """Drawn drafts come with the softmax of their own mask's logits, whatever was drawn before them."""
    slots = Slots(num_slots=1, vocab_size=VOCAB)
    slots.add(0, SamplingParams(temperature=1.0), key=5, prompt=some(20))
    _, _, make = made("published")
    drafter, tokens = BlockDrafter(make().head, DraftSampler(Sampler(slots)), 24, 16), some(20)
    observe(drafter, (0, tokens, 0, 19))
    plainly = make()
    observe(plainly, (0, tokens, 0, 19))
    (logits,) = drafted(plainly, (0, tokens, 4))
    (draft,) = drafter.draft([DraftRequest(0, tokens, 4, "rejection")])
    assert draft.q is not None
    torch.testing.assert_close(draft.q, logits.softmax(-1), atol=1e-5, rtol=1e-4)
    assert drafter.draft([DraftRequest(0, tokens, 4, "exact")])[0].q is None


WRONG = {
    "no fc": (lambda c, w: w.pop("fc.weight"), r"no tensor fc.weight, which must be \[32, 96\]"),
    "fc for another target": (
        lambda c, w: w.update({"fc.weight": torch.zeros(32, 64)}),
        r"fc.weight must be \[32, 96\], got \[32, 64\]",
    ),
    "a layer too few": (lambda c, w: c.update(num_hidden_layers=3), r"no tensor layers.2.input_layernorm.weight"),
    "a layer too many": (lambda c, w: c.update(num_hidden_layers=1), "nothing here uses: layers.1.input_layernorm"),
    "its successor": (
        lambda c, w: w.update({"layers.0.attention_conv.base_kernel": torch.zeros(2, 3, 32)}),
        "nothing here uses: layers.0.attention_conv.base_kernel",
    ),
    "another target": (
        lambda c, w: c.update(num_target_layers=36),
        "num_target_layers must be the target's, 8, got 36",
    ),
    "hidden size": (lambda c, w: c.update(hidden_size=64), "hidden_size must be the target's, 32, got 64"),
    "no block size": (lambda c, w: c.pop("block_size"), r"block_size must be an integer in \[2, 256\], got None"),
    "block of one": (lambda c, w: c.update(block_size=1), r"block_size must be an integer in \[2, 256\], got 1"),
    "no mask": (lambda c, w: c["dflash_config"].pop("mask_token_id"), r"mask_token_id must be an integer in \[0, 60\]"),
    "mask outside": (lambda c, w: c["dflash_config"].update(mask_token_id=61), r"mask_token_id must .* got 61"),
    "no layers": (lambda c, w: c.pop("dflash_config"), "mask_token_id|target_layer_ids"),
    "layers outside": (
        lambda c, w: c["dflash_config"].update(target_layer_ids=[1, 2, 8]),
        r"target_layer_ids must be .* \[0, 7\], got \[1, 2, 8\]",
    ),
    "an open window": (
        lambda c, w: c.update(
            layer_types=["sliding_attention"] * 2, sliding_window=0, use_sliding_window=True, is_causal=False
        ),
        "sliding_window must be an integer in",
    ),
    "a third kind of layer": (
        lambda c, w: c.update(layer_types=["full_attention", "chunked"]),
        "layer_types. entries must be",
    ),
    "layers not named, and other ones": (
        lambda c, w: c["dflash_config"].pop("target_layer_ids"),
        r"fc.weight must be \[32, 64\]",
    ),
    "a key of nobody's": (
        lambda c, w: c["dflash_config"].update(markov_rank=256),
        "dflash_config.markov_rank is not known here",
    ),
    "its own anchor": (lambda c, w: c.update(sample_from_anchor=True), "sample_from_anchor must be False, got True"),
    "one state": (
        lambda c, w: c["dflash_config"].update(use_aux_hidden_state=False),
        "use_aux_hidden_state must be True",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(case, tmp_path):
    spoil, message = WRONG[case]
    config, weights = dflash()
    spoil(config, weights)
    with pytest.raises(ModelLoadError, match=message):
        BlockHead.load(save(tmp_path, config, weights), TARGET)
