"""What the tests of drafting heads share: a stand-in for the target, made-up histories, heads with small random
weights, and the same arithmetic written down plainly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from tailrace import kernels
from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 61, 32, 48, 4, 2, 8, 8
EPS = 1e-5

Weights = dict[str, torch.Tensor]


class Target:
    """See runners.base.LayeredRunner, as far as heads look at it."""

    num_layers, hidden_size, vocab_size = LAYERS, HIDDEN, VOCAB
    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.embedding = torch.randn(VOCAB, HIDDEN) * 0.5
        self.weight = torch.randn(VOCAB, HIDDEN) * 0.5
        self.packed = kernels.pack_linear(self.weight)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.embedding[token_ids]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return kernels.linear(hidden, self.packed)


TARGET = Target()


def save_target(folder: Path) -> Path:
    """A random model of the same shape as a folder."""
    torch.manual_seed(6)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    return folder


def hidden_states(tokens: Sequence[int], layers: int) -> torch.Tensor:
    """What a target might compute, [len(tokens), layers · H]: of each position a function of the tokens up to it."""
    rows = []
    for i in range(len(tokens)):
        generator = torch.Generator().manual_seed(hash(tuple(tokens[: i + 1])) % (1 << 62))
        rows.append(torch.randn(layers * HIDDEN, generator=generator))
    return torch.stack(rows)


class Argmax:
    """In place of drafting.draft_sampler.DraftSampler: takes the largest, and keeps the logits it was shown."""

    def __init__(self) -> None:
        self.shown: dict[int, list[torch.Tensor]] = {}
        self.scores: dict[int, list[float]] = {}
        self.scored = True

    @contextmanager
    def start(self, asks: Sequence[DraftRequest]) -> Iterator[Argmax]:
        self.requests, self.tokens, self.shown = asks, [[] for _ in asks], {ask.slot: [] for ask in asks}
        self.scores = {ask.slot: [] for ask in asks}
        yield self

    def sample(self, logits: torch.Tensor, who: Sequence[int], scores: Sequence[float] | None = None) -> list[int]:
        assert logits.shape == (len(who), VOCAB)
        for i, score in zip(who, scores or (), strict=False):
            self.scores[self.requests[i].slot].append(score)
        for row, i in zip(logits, who, strict=True):
            self.shown[self.requests[i].slot].append(row.clone())
            self.tokens[i].append(int(row.argmax()))
        return [i for i in who if len(self.tokens[i]) < self.requests[i].count]

    def drafts(self) -> list[Draft]:
        return [Draft(tokens) for tokens in self.tokens]


def observe(drafter: Drafter, *steps: tuple[int, Sequence[int], int, int], junk: int = 0) -> None:
    """One pass of the target: (slot, its tokens by now, first position computed, how many) of each sequence; `junk`
    rows of rejected drafts behind every one."""
    rows, at, states = [], 0, []
    for _, tokens, first, count in steps:
        rows.append(at)
        states += [hidden_states(tokens, len(drafter.captures))[first : first + count]]
        states += [torch.full((junk, len(drafter.captures) * HIDDEN), 7.0, dtype=TARGET.dtype)]
        at += count + junk
    slots, tokens, first, count = zip(*steps, strict=True)
    drafter.observe(TargetStates(slots, tokens, first, count, rows, torch.cat(states)))


def drafted(drafter: Drafter, *asks: tuple[int, Sequence[int], int]) -> list[torch.Tensor]:
    """The logits that the drafts of (slot, tokens, count) were taken from, each [drafts, V]."""
    drafts = drafter.draft([DraftRequest(slot, tokens, count) for slot, tokens, count in asks])
    shown = drafter.draft_sampler.shown
    assert [len(draft.tokens) for draft in drafts] == [len(shown[slot]) for slot, _, _ in asks]
    return [torch.stack(shown[slot]) if shown[slot] else torch.empty(0, VOCAB) for slot, _, _ in asks]


def check_histories(make: Callable[[], Drafter], max_drafts: int, seed: int, steps: int = 12) -> int:
    """Random prefills in chunks, accepted and rejected drafts, slots that change hands; at every step each sequence's
    drafts must be those of a drafter that is alone with it and sees all at once, bit for bit. Returns how many were
    compared."""
    rng = random.Random(seed)
    drafter, compared = make(), 0
    running: dict[int, tuple[list[int], int]] = {}  # slot → tokens, how many are computed
    for _ in range(steps):
        for slot in range(3):
            if slot in running and rng.random() < 0.1:
                drafter.remove(slot)
                del running[slot]
            if slot not in running and rng.random() < 0.8:
                running[slot] = ([rng.randrange(VOCAB) for _ in range(rng.randint(2, 40))], 0)
        passing = []
        asking = [
            (slot, tokens, rng.randint(1, max_drafts))
            for slot, (tokens, computed) in running.items()
            if computed == len(tokens) - 1 and computed
        ]
        got = drafted(drafter, *asking)
        for (_, tokens, count), logits in zip(asking, got, strict=True):
            alone = make()
            observe(alone, (0, tokens, 0, len(tokens) - 1))
            (expected,) = drafted(alone, (0, tokens, count))
            assert len(logits) == len(expected) == count
            assert torch.equal(logits, expected)
            compared += count
        for slot, (tokens, computed) in running.items():
            if computed == len(tokens) - 1:  # a step of decoding: some drafts stand, and one more token
                new = [rng.randrange(VOCAB) for _ in range(rng.randint(1, max_drafts + 1))]
                count = len(new)
            else:
                new, count = [], rng.randint(1, len(tokens) - computed)
                new = [rng.randrange(VOCAB)] if computed + count == len(tokens) else []
            tokens = [*tokens, *new]
            running[slot] = (tokens, computed + count)
            passing.append((slot, tokens, computed, count))
        rng.shuffle(passing)
        if passing:
            observe(drafter, *passing, junk=rng.randint(0, 2))
    for slot in list(running):
        drafter.remove(slot)
    pages = drafter.context.pages
    assert sorted(pages.free) == list(range(pages.num_blocks))
    return compared


# ---- checkpoints


def llama_config(**more: object) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
    } | more


def layer_weights(prefix: str, width: int = HIDDEN, *norms: str, qk_norm: bool = False) -> Weights:
    """Of one decoder layer."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, width),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, width),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, width),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    weights = {f"{prefix}{name}.weight": torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    for name in ("post_attention_layernorm", *norms):
        weights[f"{prefix}{name}.weight"] = 1 + 0.3 * torch.randn(HIDDEN)
    for name in ("q_norm", "k_norm") if qk_norm else ():
        weights[f"{prefix}self_attn.{name}.weight"] = 1 + 0.3 * torch.randn(HEAD_DIM)
    return weights


def save(folder: Path, config: dict[str, object], weights: Weights, form: str = "safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    elif form == "shards":
        names = list(weights)
        for part, some in enumerate((names[::2], names[1::2]), start=1):
            save_file({name: weights[name] for name in some}, folder / f"model-0000{part}-of-00002.safetensors")
    else:
        prefix = "model." if form == "prefixed" else ""
        save_file({prefix + name: tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


# ---- the same arithmetic, plainly


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """x [n, heads, D], rotated: pairs (d, d + D / 2) by position · 10000^(−2d / D)."""
    half = HEAD_DIM // 2
    angle = positions[:, None, None].double() * 10000.0 ** (-torch.arange(half).double() / half)
    a, b = x[..., :half].double(), x[..., half:].double()
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1).float()


def attention(
    w: Weights,
    prefix: str,
    asking: torch.Tensor,
    at: torch.Tensor,
    held: torch.Tensor,
    where: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """o(softmax(q kᵀ) v): queries of `asking` at positions `at`; keys and values of `held` at `where`; seen [queries,
    keys]."""

    def project(x: torch.Tensor, name: str) -> torch.Tensor:
        return (x @ w[f"{prefix}self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM))

    q, k, v = project(asking, "q"), project(held, "k"), project(held, "v")
    if f"{prefix}self_attn.q_norm.weight" in w:
        q, k = rms(q, w[f"{prefix}self_attn.q_norm.weight"]), rms(k, w[f"{prefix}self_attn.k_norm.weight"])
    q, k = turned(q, at), turned(k, where)
    k, v = k.repeat_interleave(HEADS // KV_HEADS, 1), v.repeat_interleave(HEADS // KV_HEADS, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
    mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)
    return mixed.flatten(1) @ w[f"{prefix}self_attn.o_proj.weight"].T


def mlp(w: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    normed = rms(x, w[f"{prefix}post_attention_layernorm.weight"])
    gate, up = normed @ w[f"{prefix}mlp.gate_proj.weight"].T, normed @ w[f"{prefix}mlp.up_proj.weight"].T
    return x + (torch.nn.functional.silu(gate) * up) @ w[f"{prefix}mlp.down_proj.weight"].T
