"""Block-parallel heads: their arithmetic against the same written down plainly, their caches against a fresh start, and
what is refused."""

from __future__ import annotations

import random
from functools import partial

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
from tailrace.drafting.block_correction import map_rows
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


def dflash2(section: dict[str, object] | None = None, **config: object) -> tuple[dict, Weights]:
    settings, weights = dflash(
        {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 12, "selector_top_k": 5} | (section or {}),
        **config,
    )
    for i in range(2):
        for part in ("attention", "mlp"):
            weights[f"layers.{i}.{part}_conv.base_kernel"] = torch.randn(2, 3, HIDDEN) * 0.4
            weights[f"layers.{i}.{part}_conv.kernel_projection.weight"] = torch.randn(2 * 3 * 4, HIDDEN) * 0.1
    for name in ("predecessor", "successor"):
        weights[f"candidate_selector.{name}_codebook"] = torch.randn(VOCAB, 12)
    weights["candidate_selector.hidden_projection.weight"] = torch.randn(12, HIDDEN) * 0.3
    return settings | {"architectures": ["DFlash2DraftModel"]}, weights


RANK = 10


def dspark(kind: str, confident: bool = True, size: int = VOCAB, **config: object) -> tuple[dict, Weights]:
    settings, weights = dflash(**config)
    settings |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": RANK, "markov_head_type": kind}
    settings |= {"num_anchors": 512, "enable_confidence_head": confident, "confidence_head_with_markov": True}
    weights["markov_head.markov_w1.weight"] = torch.randn(VOCAB, RANK)
    weights["markov_head.markov_w2.weight"] = torch.randn(size, RANK)
    shape = {"gated": ("gate", RANK, HIDDEN + RANK), "rnn": ("joint", 3 * RANK, HIDDEN + 2 * RANK)}
    if kind in shape:
        name, rows, width = shape[kind]
        weights[f"markov_head.{name}_proj.weight"] = torch.randn(rows, width) * 0.3
        weights[f"markov_head.{name}_proj.bias"] = torch.randn(rows)
    if confident:
        weights["confidence_head.proj.weight"] = torch.randn(1, HIDDEN + RANK) * 0.2
        weights["confidence_head.proj.bias"] = torch.randn(1)
    return settings, weights


HEADS = {
    "published": dflash,
    "DFlash2": dflash2,
    "DFlash2 in a window": lambda: dflash2(
        layer_types=["sliding_attention"] * 2, sliding_window=WINDOW, use_sliding_window=True
    ),
    "DFlash2 with scales": lambda: dflash2({"output_multiplier": 0.5, "final_logit_softcapping": 3.0}),
    "DSpark": lambda: ends(*dspark("vanilla")),
    "DSpark, gated": lambda: dspark("gated"),
    "DSpark, recurrent": lambda: dspark("rnn", confident=False),
    "DSpark behind the anchor": lambda: dspark("vanilla", sample_from_anchor=False),
    "DSpark, its own vocabulary": lambda: ends(*dspark("gated", size=20), size=20),
    "DFlash from the anchor": lambda: dflash(sample_from_anchor=True),
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
    convolve = plainly_convolved if "conv_kernel_size" in section else lambda *args: args[3]
    for i in range(2):
        seen = torch.ones(BLOCK, len(where), dtype=torch.bool)
        if config.get("sliding_window_non_causal") and config["layer_types"][i] == "sliding_attention":
            seen = (where >= last - WINDOW).expand(BLOCK, -1)
        elif section.get("use_swa") or ("layer_types" in config and config["layer_types"][i] == "sliding_attention"):
            seen = (where <= at[:, None]) & (where > at[:, None] - WINDOW)
        x = rms(stream, w[f"layers.{i}.input_layernorm.weight"])
        turn = partial(convolve, w, f"layers.{i}.attention_conv.", x)
        x = turn(x, 0)
        stream = stream + turn(attention(w, f"layers.{i}.", x, at, torch.cat([context, x]), where, seen), 1)
        if "conv_kernel_size" in section:
            x = rms(stream, w[f"layers.{i}.post_attention_layernorm.weight"])
            turn = partial(convolve, w, f"layers.{i}.mlp_conv.", x)
            stream = stream + turn(feed(w, f"layers.{i}.", turn(x, 0)), 1)
        else:
            stream = mlp(w, f"layers.{i}.", stream)
    normed = rms(stream, w["norm.weight"])
    logits = normed @ w.get("lm_head.weight", TARGET.weight).T
    if "d2t" in w:
        small, logits = logits, torch.full((BLOCK, VOCAB), float("-inf"))
        logits[:, torch.arange(small.shape[1]) + w["d2t"]] = small
    logits = logits * section.get("output_multiplier", 1.0)
    cap = section.get("final_logit_softcapping")
    logits = torch.tanh(logits / cap) * cap if cap else logits
    begin = 0 if config.get("sample_from_anchor", "markov_rank" in config) else 1
    return corrected(config, w, logits[begin : begin + count], normed[begin : begin + count], tokens[-1])


def plainly_convolved(w: Weights, prefix: str, source: torch.Tensor, x: torch.Tensor, side: int) -> torch.Tensor:
    """Each channel of x [BLOCK, H] convolved with the taps that `source` gives its group."""
    base, taps = w[f"{prefix}base_kernel"][side], 3
    computed = (source @ w[f"{prefix}kernel_projection.weight"].T).view(BLOCK, 2, taps, HIDDEN // 8)[:, side]
    out = torch.zeros_like(x)
    for place in range(BLOCK):
        for tap in range(min(taps, place + 1)):
            out[place] += (base[tap] + computed[place, tap].repeat_interleave(8)) * x[place - tap]
    return out


def feed(w: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (w[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def corrected(config: dict, w: Weights, logits: torch.Tensor, normed: torch.Tensor, last: int) -> torch.Tensor:
    """The logits of each place, given the likeliest token of the place before."""
    section, found = config["dflash_config"], []
    state = torch.zeros(RANK)
    for row, hidden in zip(logits, normed, strict=True):
        if "markov_rank" in config:
            latent = w["markov_head.markov_w1.weight"][last]
            if config["markov_head_type"] == "gated":
                mixed = torch.cat([hidden, latent]) @ w["markov_head.gate_proj.weight"].T
                latent = latent * (mixed + w["markov_head.gate_proj.bias"]).sigmoid()
            elif config["markov_head_type"] == "rnn":
                mixed = torch.cat([state, latent, hidden]) @ w["markov_head.joint_proj.weight"].T
                gate, new, latent = (mixed + w["markov_head.joint_proj.bias"]).chunk(3)
                state = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh()
                latent = latent.tanh()
            bias, row = latent @ w["markov_head.markov_w2.weight"].T, row.clone()
            row[torch.arange(len(bias)) + w.get("d2t", 0)] += bias
        if "selector_rank" in section:
            wanted = w["candidate_selector.predecessor_codebook"][last]
            wanted = wanted * (w["candidate_selector.hidden_projection.weight"] @ hidden)
            pairs = row + w["candidate_selector.successor_codebook"] @ wanted
            row = torch.where(row >= row.sort().values[-section["selector_top_k"]], pairs, -torch.inf)
        found.append(row)
        last = int(row.argmax())
    return torch.stack(found)


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
    (got,) = drafted(drafter, (5, tokens, BLOCK))
    assert len(got) == BLOCK - drafter.head.first
    torch.testing.assert_close(got, plain(config, weights, tokens, BLOCK, list(range(36))), atol=2e-4, rtol=2e-4)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name", ["published", "a causal window", "an open window", "DFlash2", "DSpark", "DSpark, recurrent"]
)
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
    "its successor, not said so": (
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
        lambda c, w: c["dflash_config"].update(gru_hidden_dim=256),
        "dflash_config.gru_hidden_dim is not known here",
    ),
    "no word about the anchor": (
        lambda c, w: c.update(sample_from_anchor=1),
        "sample_from_anchor must be true or false, got 1",
    ),
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


WRONG_SUCCESSORS = {
    "no taps": (
        dflash2,
        lambda c, w: c["dflash_config"].pop("conv_kernel_size"),
        "conv_kernel_size must be .* got None",
    ),
    "no groups": (
        dflash2,
        lambda c, w: c["dflash_config"].pop("conv_group_size"),
        "conv_group_size must be .* got None",
    ),
    "uneven groups": (
        dflash2,
        lambda c, w: c["dflash_config"].update(conv_group_size=5),
        "conv_group_size must divide hidden_size, 32, got 5",
    ),
    "other taps": (
        dflash2,
        lambda c, w: c["dflash_config"].update(conv_kernel_size=2),
        r"layers.0.attention_conv.base_kernel must be \[2, 2, 32\], got \[2, 3, 32\]",
    ),
    "no candidates": (
        dflash2,
        lambda c, w: c["dflash_config"].pop("selector_top_k"),
        r"selector_top_k must be an integer in \[1, 61\], got None",
    ),
    "no rank": (dflash2, lambda c, w: c["dflash_config"].pop("selector_rank"), "selector_rank must be .* got None"),
    "no codebook": (
        dflash2,
        lambda c, w: w.pop("candidate_selector.successor_codebook"),
        r"no tensor candidate_selector.successor_codebook, which must be \[61, 12\]",
    ),
    "a fourth kind": (
        partial(dspark, "vanilla"),
        lambda c, w: c.update(markov_head_type="future"),
        "markov_head_type must be vanilla, gated or rnn, got 'future'",
    ),
    "another rank": (
        partial(dspark, "vanilla"),
        lambda c, w: c.update(markov_rank=16),
        r"markov_head.markov_w1.weight must be \[61, 16\], got \[61, 10\]",
    ),
    "a state without its first place": (
        partial(dspark, "rnn"),
        lambda c, w: c.update(sample_from_anchor=False),
        "markov_head_type rnn needs sample_from_anchor true",
    ),
    "confidence by nothing": (
        partial(dspark, "vanilla"),
        lambda c, w: c.update(markov_rank=0),
        "confidence_head_with_markov must be false without markov_rank",
    ),
    "no confidence": (
        partial(dspark, "vanilla"),
        lambda c, w: w.pop("confidence_head.proj.weight"),
        r"no tensor confidence_head.proj.weight, which must be \[1, 42\]",
    ),
    "both": (
        partial(dspark, "vanilla"),
        lambda c, w: (
            c["dflash_config"].update(selector_rank=12, selector_top_k=5),
            w.update({name: tensor for name, tensor in dflash2()[1].items() if name.startswith("candidate_selector")}),
        ),
        "markov_rank and selector_rank must not both be set",
    ),
    "the embedding as a layer": (
        partial(dspark, "vanilla"),
        lambda c, w: c["dflash_config"].update(target_layer_ids=[-1, 2, 4]),
        r"target_layer_ids must be a list of different integers in \[0, 7\], got \[-1, 2, 4\]",
    ),
    "another backbone": (partial(dspark, "vanilla"), lambda c, w: c.update(model_type="gemma4"), "model_type must be"),
}


@pytest.mark.parametrize("case", WRONG_SUCCESSORS)
def test_what_does_not_fit_a_successor_is_named(case, tmp_path):
    build, spoil, message = WRONG_SUCCESSORS[case]
    config, weights = build()
    spoil(config, weights)
    with pytest.raises(ModelLoadError, match=message):
        BlockHead.load(save(tmp_path, config, weights), TARGET)


def test_settings_may_be_in_sections(tmp_path, made):
    """Published files have them at the top, in dflash_config, or in dspark_config."""
    tokens, found = some(30), []
    names = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
    for place in ("", "dflash_config", "dspark_config"):
        config, weights = dspark("gated")
        if place:
            del config["architectures"]
            config.setdefault(place, {}).update({name: config.pop(name) for name in names})
        head = BlockHead.load(save(tmp_path / (place or "top"), config, weights), TARGET)
        drafter = BlockDrafter(head, Argmax(), 24, 16)
        observe(drafter, (0, tokens, 0, 29))
        found.append(drafted(drafter, (0, tokens, BLOCK))[0])
    assert len(found[0]) == BLOCK
    assert all(torch.equal(found[0], each) for each in found[1:])


def test_scores_are_the_confidence_and_only_where_it_is_read(made):
    _, weights, make = made("DSpark")
    drafter, tokens = make(), some(20)
    observe(drafter, (0, tokens, 0, 19))
    drafts = drafter.draft([DraftRequest(0, tokens, BLOCK)])
    scores = drafter.draft_sampler.scores[0]
    before = [tokens[-1], *drafts[0].tokens[:-1]]
    normed = drafter._compute_places([DraftRequest(0, tokens, BLOCK)], [19])
    inputs = torch.cat([normed, weights["markov_head.markov_w1.weight"][before]], 1)
    odds = inputs @ weights["confidence_head.proj.weight"].T + weights["confidence_head.proj.bias"]
    assert scores == pytest.approx(odds[:, 0].sigmoid().tolist(), abs=1e-5)
    drafter.draft_sampler.scored = False
    drafter.draft([DraftRequest(0, tokens, BLOCK)])
    assert drafter.draft_sampler.scores[0] == []


def test_corrected_proposals_follow_the_drawn_token(made):
    """Each draft comes with the distribution that it was drawn from, given the drafts before it."""
    for name in ("DSpark, gated", "DFlash2"):
        config, weights, make = made(name)
        slots = Slots(num_slots=1, vocab_size=VOCAB)
        slots.add(0, SamplingParams(temperature=1.0), key=5, prompt=some(20))
        drafter, tokens = BlockDrafter(make().head, DraftSampler(Sampler(slots)), 24, 16), some(20)
        observe(drafter, (0, tokens, 0, 19))
        (draft,) = drafter.draft([DraftRequest(0, tokens, 4, "rejection")])
        assert draft.q is not None
        request = DraftRequest(0, tokens, 4)
        normed = drafter._compute_places([request], [19])
        logits, last = drafter.head.logits(normed), tokens[-1]
        for place, token in enumerate(draft.tokens):
            row = corrected(config, weights, logits[place : place + 1], normed[place : place + 1], last)
            torch.testing.assert_close(draft.q[place], row[0].softmax(-1), atol=1e-5, rtol=1e-4)
            last = token


def test_a_row_does_not_depend_on_the_others():
    """Elementwise functions end an array by other code than they begin it."""
    torch.manual_seed(2)
    x = torch.randn(70, 10)
    for function in (torch.sigmoid, torch.tanh):
        whole = map_rows(function, x)
        assert torch.equal(whole, torch.cat([map_rows(function, row[None]) for row in x]))
        torch.testing.assert_close(whole, function(x))
