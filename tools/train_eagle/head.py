"""An EAGLE-3 head as it is trained: its configuration, its first weights, its forward pass over whole texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tailrace.drafting.layer import Rotary

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Ends:
    """What the head shares with its target, float32 [V, H]: the embedding, and the output head's weights."""

    embedding: torch.Tensor
    head: torch.Tensor


def ends_of(runner: Any) -> Ends:
    """The Ends of a runner. The output head is asked row by row, since it may be packed."""
    embedding = runner.embed(torch.arange(runner.vocab_size)).float().clone()
    columns = runner.head(torch.eye(runner.hidden_size, dtype=runner.dtype))
    return Ends(embedding, columns.float().T.contiguous())


def configured(folder: Path, layers: tuple[int, ...], vocab: int) -> dict[str, Any]:
    """The head's config.json, for a Llama-like target."""
    from transformers import AutoConfig

    target = AutoConfig.from_pretrained(folder)
    same = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "vocab_size",
        "rope_parameters",
    )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        **{name: getattr(target, name) for name in same},
        "head_dim": getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        "tie_word_embeddings": False,
        "draft_vocab_size": vocab,
        "fc_norm": True,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [i + 1 for i in layers],  # this field counts layer inputs
    }


def fresh(config: dict[str, Any], layers: int, rows: torch.Tensor, generator: torch.Generator) -> Weights:
    """The weights before training: the state is that of the highest layer, the layer adds little to it, and the output
    head is the target's.

    Args:
        rows: float32 [Vd, H], of the target's output head.
    """
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "fc": (hidden, layers * hidden),
        "midlayer.self_attn.q_proj": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
    }
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) * 0.5 * shape[1] ** -0.5
        for name, shape in shapes.items()
    }
    weights["fc.weight"][:, -hidden:] += torch.eye(hidden)
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    for name in (*(f"fc_norm.{i}" for i in range(layers)), *(f"midlayer.{norm}" for norm in norms), "norm"):
        weights[f"{name}.weight"] = torch.ones(hidden)
    weights["lm_head.weight"] = rows.clone()
    return weights


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x.float(), weight.shape, weight, eps)


def later(x: torch.Tensor, by: int) -> torch.Tensor:
    """[B, T, …], shifted by `by` positions to the right."""
    return torch.cat([x[:, :1].expand(-1, by, *x.shape[2:]), x[:, :-by]], 1) if by else x


class TrainedHead:
    """An EAGLE-3 head for training. drafting/eagle_heads.py computes the same, one entry at a time.

    Entry j is made of the target's state at position j and the token at j + 1, and predicts the token at j + 2. At
    depth s the state is the head's own output at entry j − 1 and depth s − 1: draft number s + 1 of a drafting that
    began at entry j − s.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        from transformers import LlamaConfig

        self.rotary, self.eps = Rotary(LlamaConfig(**config), torch.float32, "cpu"), config["rms_norm_eps"]
        self.heads, self.kv_heads, self.dim = (
            config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )

    def __call__(self, w: Weights, embedded: torch.Tensor, states: torch.Tensor, depth: int) -> Iterator[torch.Tensor]:
        """The logits of each depth, [B, T, Vd].

        Args:
            embedded: [B, T, H], the tokens at positions 1 … T. states: [B, T, C·H], at positions 0 … T − 1.
        """
        count = states.shape[1]
        parts = states.chunk(states.shape[2] // embedded.shape[2], -1)
        normed = [rms(part, w[f"fc_norm.{i}.weight"], self.eps) for i, part in enumerate(parts)]
        state = F.linear(torch.cat(normed, -1), w["fc.weight"])
        entering = rms(embedded, w["midlayer.input_layernorm.weight"], self.eps)
        rope = tuple(part[:, None] for part in self.rotary(torch.arange(count)))
        behind = torch.arange(count)[:, None] - torch.arange(count)
        held: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values of each depth, [B, T, Hkv, D]
        for s in range(depth):
            residual = rms(state, w["midlayer.hidden_norm.weight"], self.eps)
            x = torch.cat([entering, residual], -1)
            q, k, v = (
                F.linear(x, w[f"midlayer.self_attn.{name}_proj.weight"]).unflatten(-1, (-1, self.dim)) for name in "qkv"
            )
            held.append((turned(k, rope), v))
            mixed = self._mix(turned(q, rope), held, behind >= s)
            out = residual + F.linear(mixed, w["midlayer.self_attn.o_proj.weight"])
            y = rms(out, w["midlayer.post_attention_layernorm.weight"], self.eps)
            y = F.silu(F.linear(y, w["midlayer.mlp.gate_proj.weight"])) * F.linear(y, w["midlayer.mlp.up_proj.weight"])
            out = out + F.linear(y, w["midlayer.mlp.down_proj.weight"])
            yield F.linear(rms(out, w["norm.weight"], self.eps), w["lm_head.weight"])
            state = later(out, 1)

    def _mix(self, q: torch.Tensor, held: list[tuple[torch.Tensor, torch.Tensor]], seen: torch.Tensor) -> torch.Tensor:
        """Attention at the last depth: over the entries of depth 0 that are far enough back, then one entry of each
        further depth."""
        spread = self.heads // self.kv_heads
        first, *more = ((k.repeat_interleave(spread, 2), v.repeat_interleave(spread, 2)) for k, v in held)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, first[0]).masked_fill(~seen, -math.inf)
        chain = [(later(k, len(more) - t), later(v, len(more) - t)) for t, (k, v) in enumerate(more, 1)]
        own = [torch.einsum("bqhd,bqhd->bhq", q, k)[..., None] for k, _ in chain]
        shares = (torch.cat([scores, *own], -1).float() * self.dim**-0.5).softmax(-1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", shares[..., : q.shape[1]], first[1].float())
        for t, (_, v) in enumerate(chain):
            mixed = mixed + shares[..., q.shape[1] + t].transpose(1, 2)[..., None] * v
        return mixed.flatten(2)


def turned(x: torch.Tensor, rope: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Rotary embedding: [B, T, heads, D] at its positions."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin
