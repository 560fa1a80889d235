"""EAGLE heads: their arithmetic against the same written down plainly, their caches against a fresh start, and what is
refused."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

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
from tailrace.drafting.base import Drafter, DraftRequest
from tailrace.drafting.chain import ChainDrafter
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.drafting.eagle_heads import fused_layers, load_head
from tailrace.errors import ModelLoadError
from tailrace.params import SamplingParams
from tailrace.sampling import Sampler, Slots

DRAFT_VOCAB = 23


def first_head(bias: bool = True) -> tuple[dict, Weights]:
    torch.manual_seed(2)
    weights = {"fc.weight": torch.randn(HIDDEN, 2 * HIDDEN) * 0.3, **layer_weights("layers.0.")}
    if bias:
        weights |= {"fc.bias": torch.randn(HIDDEN), "embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}
    return llama_config(), weights


def third_head(reduced: bool = True, **config: object) -> tuple[dict, Weights]:
    torch.manual_seed(3)
    prefix = "midlayer." if reduced else "layers.0."
    weights = {
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN) * 0.2,
        "norm.weight": 1 + 0.3 * torch.randn(HIDDEN),
        "lm_head.weight": torch.randn(DRAFT_VOCAB if reduced else VOCAB, HIDDEN),
        **layer_weights(prefix, 2 * HIDDEN, "input_layernorm", "hidden_norm"),
    }
    if reduced:
        ids = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
        weights["d2t"] = ids - torch.arange(DRAFT_VOCAB)
        weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    else:
        weights["embed_tokens.weight"] = TARGET.embedding.clone()
    return llama_config(draft_vocab_size=DRAFT_VOCAB if reduced else VOCAB) | config, weights


def variant(kind: str) -> tuple[dict, Weights]:
    """An EAGLE-3 head that differs from the published one."""
    config, w = third_head()
    if kind == "fc_norm":
        w |= {f"fc_norm.{i}.weight": 1 + 0.3 * torch.randn(HIDDEN) for i in range(3)}
        return config | {"fc_norm": True, "norm_output": True}, w
    if kind == "norm_before_fc":
        return config | {"norm_before_fc": True}, w | {"input_norm.weight": 1 + 0.3 * torch.randn(3 * HIDDEN)}
    if kind == "no aux":
        del w["fc.weight"]
        return config | {"eagle_config": {"use_aux_hidden_state": False}}, w
    if kind == "no head":
        del w["lm_head.weight"]
        return config, w
    if kind == "tied":
        config, w = third_head(reduced=False, tie_word_embeddings=True)
        del w["lm_head.weight"]
        return config, w | {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}
    assert kind == "no last norm"
    return config | {"norm_output": False}, w


HEADS = {
    **{
        f"third, {kind}": partial(variant, kind)
        for kind in ("fc_norm", "norm_before_fc", "no aux", "no head", "tied", "no last norm")
    },
    "third, of another family": lambda: third_head(model_type="phi3", pad_token_id=0),
    "first": first_head,
    "first, plain": lambda: first_head(bias=False),
    "third": third_head,
    "third, whole vocabulary": lambda: third_head(reduced=False),
    "third, normed residual": lambda: third_head(norm_before_residual=True),
}


def plain(config: dict, w: Weights, tokens: list[int], count: int, known: list[int]) -> torch.Tensor:
    """What the drafts after `tokens` are taken from, [count, V], with the target's states of the positions `known`."""
    third = "norm.weight" in w
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in w else "layers.0."
    embedding = w.get("embed_tokens.weight", TARGET.embedding)
    states = hidden_states(tokens, 3 if third and "fc.weight" in w else 1)[known]
    if "fc_norm.0.weight" in w:
        states = torch.cat([rms(part, w[f"fc_norm.{i}.weight"]) for i, part in enumerate(states.chunk(3, -1))], -1)
    states = rms(states, w["input_norm.weight"]) if "input_norm.weight" in w else states
    states = states @ w["fc.weight"].T if third and "fc.weight" in w else states
    own = w.get("lm_head.weight", embedding if config.get("tie_word_embeddings") else TARGET.weight)
    following, positions, logits = [tokens[p + 1] for p in known], list(known), []
    for _ in range(count):
        embedded = embedding[following]
        if third:
            normed = rms(states, w[f"{prefix}hidden_norm.weight"])
            x = torch.cat([rms(embedded, w[f"{prefix}input_layernorm.weight"]), normed], -1)
            residual = normed if config.get("norm_before_residual") else states
        else:
            x = residual = torch.cat([embedded, states], -1) @ w["fc.weight"].T + w.get("fc.bias", torch.zeros(1))
        at = torch.tensor(positions)
        mixed = attention(w, prefix, x[-1:], at[-1:], x, at, torch.ones(1, len(at), dtype=torch.bool))
        out = mlp(w, prefix, residual[-1:] + mixed)
        if not third:
            logits.append((out @ TARGET.weight.T)[0])
        else:
            normed = rms(out, w["norm.weight"])
            said = ((out if config.get("norm_output") is False else normed) @ own.T)[0]
            row = torch.full((VOCAB,), float("-inf"))
            known_ids = torch.arange(DRAFT_VOCAB) + w["d2t"] if "d2t" in w else torch.arange(VOCAB)
            row[known_ids] = said[known_ids] if len(said) == VOCAB else said
            logits.append(row)
            out = normed if config.get("norm_output") else out
        states = torch.cat([states, out])
        following.append(int(logits[-1].argmax()))
        positions.append(positions[-1] + 1)
    return torch.stack(logits)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """name → (config, weights, a function that makes a drafter)."""
    folders: dict[str, tuple] = {}

    def make(name: str):
        if name not in folders:
            config, weights = HEADS[name]()
            head = load_head(save(tmp_path_factory.mktemp("head"), config, weights), TARGET)
            folders[name] = (config, weights, lambda: ChainDrafter(head, Argmax(), 24, 16))
        return folders[name]

    return make


def some(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_what_the_papers_say(name, made):
    config, weights, make = made(name)
    drafter, tokens = make(), some(37)
    observe(drafter, (5, tokens, 0, 36))
    (got,) = drafted(drafter, (5, tokens, 4))
    torch.testing.assert_close(got, plain(config, weights, tokens, 4, list(range(36))), atol=2e-4, rtol=2e-4)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["first", "third"])
@pytest.mark.parametrize("seed", range(4))
def test_any_history_leaves_what_a_fresh_start_would(name, seed, made):
    assert check_histories(made(name)[2], 5, seed) > 20


def test_a_long_prefill_enters_in_pieces(made):
    config, weights, make = made("third")
    drafter = ChainDrafter(make().head, Argmax(), 80, 16)
    tokens = some(1200)
    observe(drafter, (0, tokens, 0, 1199))
    (got,) = drafted(drafter, (0, tokens, 2))
    torch.testing.assert_close(got, plain(config, weights, tokens, 2, list(range(1199))), atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize("name", ["first", "third"])
def test_positions_that_were_never_seen_are_missing_and_nothing_else_changes(name, made):
    """A prefix from the target's cache, and another gap in the middle."""
    config, weights, make = made(name)
    drafter, tokens = make(), some(60)
    observe(drafter, (1, tokens, 20, 10))
    observe(drafter, (1, tokens, 41, 18))
    (got,) = drafted(drafter, (1, tokens, 3))
    known = [*range(20, 30), *range(41, 59)]
    torch.testing.assert_close(got, plain(config, weights, tokens, 3, known), atol=2e-4, rtol=2e-4)
    whole = plain(config, weights, tokens, 3, list(range(59)))
    assert not torch.allclose(got[:, whole[0] > -torch.inf], whole[:, whole[0] > -torch.inf], atol=1e-2)


def test_where_the_last_position_was_not_seen_nothing_is_drafted(made):
    _, _, make = made("third")
    drafter, tokens = make(), some(30)
    assert drafted(drafter, (0, tokens, 3))[0].shape == (0, VOCAB)  # never heard of
    observe(drafter, (0, tokens, 0, 20))
    assert len(drafted(drafter, (0, tokens, 3))[0]) == 0
    observe(drafter, (0, tokens, 20, 9))
    assert len(drafted(drafter, (0, tokens, 3))[0]) == 3
    assert len(drafted(drafter, (0, tokens[:25], 3))[0]) == 0  # went back, and the state there is gone
    observe(drafter, (0, tokens[:25], 23, 1))
    assert len(drafted(drafter, (0, tokens[:25], 3))[0]) == 3


def test_a_token_drawn_anew_at_the_last_position(made):
    """A banned string takes tokens back; the position before them is computed again, and followed by another token."""
    _, _, make = made("first")
    drafter, tokens = make(), some(30)
    observe(drafter, (0, tokens, 0, 29))
    other = [*tokens[:20], (tokens[20] + 1) % VOCAB]
    observe(drafter, (0, other, 19, 1))
    alone = make()
    observe(alone, (0, other, 0, 20))
    assert torch.equal(drafted(drafter, (0, other, 4))[0], drafted(alone, (0, other, 4))[0])


def test_a_slot_changes_hands(made):
    _, _, make = made("third")
    drafter, one, two = make(), some(50, 1), some(18, 2)
    observe(drafter, (3, one, 0, 49))
    drafted(drafter, (3, one, 5))
    drafter.remove(3)
    drafter.remove(7)  # never heard of
    assert len(drafter.context.pages.free) == 24
    assert len(drafted(drafter, (3, two, 2))[0]) == 0
    observe(drafter, (3, two, 0, 17))
    alone = make()
    observe(alone, (0, two, 0, 17))
    assert torch.equal(drafted(drafter, (3, two, 5))[0], drafted(alone, (0, two, 5))[0])


def test_without_room_there_are_fewer_drafts_and_neighbours_do_not_notice(made):
    _, _, make = made("third")
    head = make().head
    drafter, one, two = ChainDrafter(head, Argmax(), 3, 16), some(33, 1), some(40, 2)
    observe(drafter, (0, one, 0, 32))  # two blocks, full
    observe(drafter, (1, two, 0, 39))  # would be three
    assert len(drafted(drafter, (1, two, 4))[0]) == 0
    observe(drafter, (2, some(17, 3), 0, 16))  # the last one, full
    alone = make()
    observe(alone, (0, one, 0, 32))
    (expected,) = drafted(alone, (0, one, 4))
    (got,) = drafted(drafter, (0, one, 4))
    assert torch.equal(got, expected[:1])  # its entry is there already
    drafter.remove(2)
    assert torch.equal(drafted(drafter, (0, one, 4))[0], expected)


def test_it_is_a_drafter_that_wants_the_right_layers(made):
    assert isinstance(made("first")[2](), Drafter)
    assert made("first")[2]().captures == (LAYERS,)
    assert made("third")[2]().captures == (1, 3, 4)


def test_the_bytes_of_its_cache(made):
    drafter = made("third")[2]()
    assert drafter.cache_bytes == drafter.cache.keys.nbytes + drafter.cache.values.nbytes


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, (1, 15, 28)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 9, 31]}}, (0, 9, 31)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 9, 32]}, (1, 8, 31)),
    ],
)
def test_which_layers_are_fused(config, layers, tmp_path):
    checkpoint = Checkpoint(save(tmp_path, config, {"a": torch.zeros(1)}), torch.float32)
    assert fused_layers(checkpoint, 32) == layers


# ---- with the draft_sampler


@pytest.fixture
def draft_sampler():
    slots = Slots(num_slots=4, vocab_size=VOCAB)
    for slot, params in enumerate([SamplingParams(temperature=0.9), SamplingParams(temperature=0.0)]):
        slots.add(slot, params, key=11 + slot, prompt=some(20, slot))
    return DraftSampler(Sampler(slots))


def test_proposals_cover_the_heads_own_vocabulary_only(made, draft_sampler):
    _, weights, make = made("third")
    drafter = ChainDrafter(make().head, draft_sampler, 24, 16)
    one, two = some(20, 0), some(20, 1)
    observe(drafter, (0, one, 0, 19), (1, two, 0, 19))
    known = torch.arange(DRAFT_VOCAB) + weights["d2t"]
    drawn, greedy = drafter.draft([DraftRequest(0, one, 4, "rejection"), DraftRequest(1, two, 3, "rejection")])
    assert len(drawn.tokens) == 4
    assert len(greedy.tokens) == 3
    assert {*drawn.tokens, *greedy.tokens} <= set(known.tolist())
    assert drawn.q is not None
    torch.testing.assert_close(drawn.q[:, known].sum(1), torch.ones(4))
    assert greedy.q is None
    again = drafter.draft([DraftRequest(0, one, 4, "exact")])[0]
    assert again.q is None
    assert set(again.tokens) <= set(known.tolist())
    assert drafter.draft([DraftRequest(0, one, 4, "exact")])[0].tokens == again.tokens


# ---- checkpoints


@pytest.mark.parametrize("form", ["bin", "shards", "prefixed"])
def test_forms_of_a_checkpoint(form, made, tmp_path):
    config, weights, make = made("third")
    drafter = ChainDrafter(load_head(save(tmp_path, config, weights, form), TARGET), Argmax(), 24, 16)
    same, tokens = make(), some(25)
    for each in (drafter, same):
        observe(each, (0, tokens, 0, 24))
    assert torch.equal(drafted(drafter, (0, tokens, 3))[0], drafted(same, (0, tokens, 3))[0])


def test_the_speculators_form(made, tmp_path):
    config, weights, make = made("third")
    weights = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in weights.items()}
    head = load_head(
        save(tmp_path, {"transformer_layer_config": config, "draft_vocab_size": DRAFT_VOCAB}, weights), TARGET
    )
    drafter, same, tokens = ChainDrafter(head, Argmax(), 24, 16), make(), some(25)
    for each in (drafter, same):
        observe(each, (0, tokens, 0, 24))
    assert torch.equal(drafted(drafter, (0, tokens, 3))[0], drafted(same, (0, tokens, 3))[0])


def test_the_targets_own_embedding_is_not_kept_twice(tmp_path):
    config, weights = third_head(reduced=False)
    assert load_head(save(tmp_path, config, weights), TARGET).embed == TARGET.embed


def without(*names: str):
    return lambda config, weights: [weights.pop(name) for name in names]


def with_tensor(name: str, *shape: int):
    return lambda config, weights: weights.update({name: torch.zeros(shape)})


WRONG = {
    "no fc": ("third", without("fc.weight"), r"no tensor fc.weight, which must be \[32, 96\]"),
    "fc for another target": (
        "third",
        with_tensor("fc.weight", HIDDEN, 90),
        r"fc.weight must be \[32, 96\], got \[32, 90\]",
    ),
    "fc for another target, first": ("first", with_tensor("fc.weight", HIDDEN, 60), r"fc.weight must be \[32, 64\]"),
    "narrow projection": (
        "third",
        with_tensor("midlayer.self_attn.k_proj.weight", 16, HIDDEN),
        "midlayer.self_attn.k_proj.weight",
    ),
    "a key of nobody's": (
        "third",
        lambda c, w: c.update(residual_multiplier=0.5),
        "config.json: residual_multiplier is not known here",
    ),
    "a key of nobody's, inside": (
        "third",
        lambda c, w: c.update(eagle_config={"ptd": True}),
        "eagle_config.ptd is not known here",
    ),
    "a key of nobody's, first": (
        "first",
        lambda c, w: c.update(residual_multiplier=0.5),
        "residual_multiplier is not known here",
    ),
    "quantized": (
        "third",
        lambda c, w: c.update(quantization_config={"bits": 4}),
        "quantization_config must be absent",
    ),
    "a window by family": (
        "third",
        lambda c, w: c.update(model_type="mistral", sliding_window=4),
        "sliding_window must be null for model_type mistral, got 4",
    ),
    "another target's states": ("third", lambda c, w: c.update(target_hidden_size=9999), "target_hidden_size must be"),
    "states that are not fused": (
        "third",
        lambda c, w: c.update(num_aux_hidden_states=7),
        "num_aux_hidden_states must be",
    ),
    "a window": ("third", lambda c, w: c.update(use_sliding_window=True), "use_sliding_window must be False, got True"),
    "no flag": ("third", lambda c, w: c.update(fc_norm="yes"), "fc_norm must be true or false"),
    "two norms": ("third", lambda c, w: c.update(fc_norm=True, norm_before_fc=True), "can't both be true"),
    "fc without states": ("third", lambda c, w: c.update(use_aux_hidden_state=False), "nothing here uses: fc.weight"),
    "norms without a word": ("third", with_tensor("fc_norm.0.weight", HIDDEN), "nothing here uses: fc_norm.0.weight"),
    "head without a mapping": ("third", without("d2t"), r"lm_head.weight must be \[61, 32\], got \[23, 32\]"),
    "mapping outside": ("third", lambda c, w: w["d2t"].add_(VOCAB), r"d2t must lead to different tokens in \[0, 60\]"),
    "mapping twice": ("third", lambda c, w: w["d2t"].copy_(-torch.arange(DRAFT_VOCAB)), "d2t must lead to different"),
    "mapping of floats": ("third", lambda c, w: w.update(d2t=w["d2t"].float()), "d2t must hold integers, got float32"),
    "mapping of one": ("third", lambda c, w: w.update(d2t=w["d2t"].sum()), r"d2t must be \[23\], got \[\]"),
    "integers for a norm": (
        "third",
        lambda c, w: w.update({"norm.weight": w["norm.weight"].to(torch.int8)}),
        "norm.weight must hold floats, got int8",
    ),
    "mapping too short": ("third", with_tensor("d2t", 5), r"d2t must be \[23\], got \[5\]"),
    "another vocabulary": (
        "first",
        with_tensor("embed_tokens.weight", 50, HIDDEN),
        r"embed_tokens.weight must be \[61, 32\]",
    ),
    "more than we know": (
        "first",
        with_tensor("layers.0.input_layernorm.weight", HIDDEN),
        "nothing here uses: layers.0.input_layernorm",
    ),
    "two layers": ("first", lambda c, w: c.update(num_hidden_layers=2), "num_hidden_layers must be 1, got 2"),
    "hidden size": ("first", lambda c, w: c.update(hidden_size=64), "hidden_size must be the target's, 32, got 64"),
    "activation": ("first", lambda c, w: c.update(hidden_act="gelu"), "hidden_act must be silu, got 'gelu'"),
    "family": ("first", lambda c, w: c.update(model_type="mamba"), "model_type must be llama"),
    "heads": ("first", lambda c, w: c.update(num_key_value_heads=3), "multiple of num_key_value_heads"),
    "rotary scaling": (
        "first",
        lambda c, w: c.update(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        "rotary scaling",
    ),
    "pinned layers": (
        "third",
        lambda c, w: c.update(eagle_aux_hidden_state_layer_ids=[0, 2, 3]),
        r"outputs of layers \[-1, 1, 2\]",
    ),
    "pinned nonsense": (
        "third",
        lambda c, w: c.update(eagle_aux_hidden_state_layer_ids=["a"]),
        "eagle_aux_hidden_state_layer_ids",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(case, tmp_path):
    name, spoil, message = WRONG[case]
    config, weights = HEADS[name]()
    spoil(config, weights)
    with pytest.raises(ModelLoadError, match=message):
        load_head(save(tmp_path, config, weights), TARGET)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_head(tmp_path, TARGET)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="neither"):
        load_head(tmp_path, TARGET)
    Path(tmp_path / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ModelLoadError):
        load_head(tmp_path, TARGET)
