"""Trains an EAGLE-3 head (arXiv 2503.01840) for a model on the CPU, on the model's own answers about text that installed packages hold.

    python -m bench.train_eagle FOLDER
    tailrace serve --drafter eagle --draft-model FOLDER

The head learns the model's distributions, not the text: at every position what the model would say next, also where it is guessed from
the head's own outputs (--depth, the paper's training-time test). The same command gives the same file, bit for bit, on the same machine
with the same packages and the same --threads: steps are counted, and no clock decides anything.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.eagle_corpus import Sample, answered, engine_for, questions
from bench.harness import cores
from safetensors.torch import save_file
from torch.nn import functional as F

from tailrace.config import ModelConfig
from tailrace.drafting.layer import Rotary
from tailrace.models import resolve
from tailrace.text.tokenizer import Tokenizer

Weights = dict[str, torch.Tensor]
Said = tuple[torch.Tensor, torch.Tensor]  # see `said`
DEPTH_WEIGHT = 0.8  # of each further guess in the loss, as published
HELD_OUT = 20  # one in so many samples is not trained on
WINDOW = 16  # batches whose samples are sorted by length before they are cut, so that little is padded
WARM_UP = 0.05  # of the steps
CLIP = 1.0  # of the gradient's norm


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """How long, and on how much."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.train_eagle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the head goes: config.json and model.safetensors")
    parser.add_argument("--model", help="as for tailrace serve; the default model without it")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of the model, and of products in training"
    )
    parser.add_argument("--answers", type=int, default=512, help="that the model gives")
    parser.add_argument("--answer-tokens", type=int, default=192, help="of an answer, at most")
    parser.add_argument("--streams", type=int, default=64, help="answers at a time")
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--batch", type=int, default=8, help="answers in a step")
    parser.add_argument("--depth", type=int, default=2, help="guesses in a row that are trained")
    parser.add_argument("--vocab", type=int, default=8192, help="tokens that the head knows: the most frequent ones")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning, at its highest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=cores())
    args = parser.parse_args(argv)
    for name in ("answers", "answer_tokens", "streams", "steps", "batch", "depth", "vocab", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    return args


def main(argv: list[str] | None = None) -> int:
    """Ask, listen, train, write."""
    args = arguments(argv)
    start = time.perf_counter()
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    torch.set_num_threads(args.threads)
    engine = engine_for(local.folder, args.dtype, args.threads, args.streams)
    runner: Any = engine.runner
    layers = (1, runner.num_layers // 2 - 1, runner.num_layers - 4)  # as published
    prompts = questions(Tokenizer.load(local.folder), args.answers, args.seed)
    samples = answered(engine, prompts, args.answer_tokens, args.seed, layers)
    engine.close()
    print(f"{len(samples)} samples, {sum(map(length, samples))} positions, {time.perf_counter() - start:.0f} s")
    config = configured(local.folder, layers, min(args.vocab, runner.vocab_size))
    weights, losses, agreement = trained(config, samples, ends_of(runner), args)
    save(args.folder, config, weights)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last, {time.perf_counter() - start:.0f} s in all")
    found = ", ".join(f"{share:.3f}" for share in agreement)
    print(f"on samples that were not trained on, the model's likeliest token is the head's as guess 1, 2, …: {found}")
    return 0


def length(sample: Sample) -> int:
    return len(sample.last)


# ---- the head


@dataclass(frozen=True, slots=True)
class Ends:
    """What the head shares with its target, float32 [V, H]: its embedding, and its output head's weights."""

    embedding: torch.Tensor
    head: torch.Tensor


def ends_of(runner: Any) -> Ends:
    """A runner's. The output head is asked row by row, since it may be packed."""
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
        "eagle_aux_hidden_state_layer_ids": [i + 1 for i in layers],  # which counts inputs
    }


def fresh(config: dict[str, Any], layers: int, rows: torch.Tensor, generator: torch.Generator) -> Weights:
    """Where training begins: the state is that of the highest layer, the layer adds little to it, and the output head is the target's.

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
    """[B, T, …] with everything `by` positions further on."""
    return torch.cat([x[:, :1].expand(-1, by, *x.shape[2:]), x[:, :-by]], 1) if by else x


class TrainedHead:
    """An EAGLE-3 head as it is trained: drafting/eagle_heads.py computes the same, one entry at a time.

    Entry j is made of the target's state at position j and of the token at j + 1, and guesses the token at j + 2. At depth s the state is
    the head's own output at entry j − 1 and depth s − 1: its draft number s + 1 where drafting began at entry j − s.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        from transformers import LlamaConfig

        self.rotary, self.eps = Rotary(LlamaConfig(**config), torch.float32, "cpu"), config["rms_norm_eps"]
        self.heads, self.kv_heads, self.dim = (
            config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )

    def __call__(self, w: Weights, embedded: torch.Tensor, states: torch.Tensor, depth: int) -> Iterator[torch.Tensor]:
        """Of each depth the logits [B, T, Vd].

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
        """Attention at the last of the depths: over the entries of depth 0 that are far enough behind, then one of each further depth."""
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
    """[B, T, heads, D] at its positions."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


# ---- training


@dataclass(frozen=True, slots=True)
class Lesson:
    """Some samples, side by side and padded. embedded [B, T, H], states [B, T, C·H], as TrainedHead takes them. wanted: [B, T, Vd], the target's
    probabilities of the head's tokens at the next position; likeliest: int64 [B, T], the head's id of the likeliest token there, −1 where
    it does not know it; valid: bool [B, T]."""

    embedded: torch.Tensor
    states: torch.Tensor
    wanted: torch.Tensor
    likeliest: torch.Tensor
    valid: torch.Tensor


def lesson(samples: Sequence[Sample], says: Sequence[Said], ids: torch.Tensor, ends: Ends) -> Lesson:
    """The samples as a lesson. says: of each sample what `said` found."""
    counts = torch.tensor([length(sample) - 1 for sample in samples])

    def padded(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)

    known = torch.full((len(ends.head),), -1).index_copy(0, ids, torch.arange(len(ids)))
    logits = F.linear(padded([sample.last[1:].float() for sample in samples]), ends.head[ids])
    mass = padded([mass[1:] for _, mass in says])
    likeliest = padded([best[1:] for best, _ in says])
    return Lesson(
        F.embedding(padded([sample.tokens[1:-1] for sample in samples]), ends.embedding),
        padded([sample.states[:-1].float() for sample in samples]),
        (logits - mass[..., None]).exp(),
        known[likeliest],
        torch.arange(int(counts.max())) < counts[:, None],
    )


def said(sample: Sample, ends: Ends) -> Said:
    """Of each position the target's likeliest token, int64 [n], and log Σ exp of its logits, float32 [n]."""
    logits = F.linear(sample.last.float(), ends.head).float()
    return logits.argmax(-1), logits.logsumexp(-1)


def losses_of(logits: Iterator[torch.Tensor], to: Lesson) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of each depth the cross-entropy per position, and the share of positions where the likeliest token is the target's."""
    for depth, found in enumerate(logits):
        valid = to.valid.clone()
        valid[:, :depth] = False  # nothing begins before the text
        each = -(to.wanted * found.float().log_softmax(-1)).sum(-1)
        agrees = to.likeliest == found.argmax(-1)
        count = valid.sum().clamp_min(1)
        yield each[valid].sum() / count, agrees[valid].sum() / count


@torch.no_grad()
def vocabulary(says: Sequence[Said], ends: Ends, count: int) -> torch.Tensor:
    """The tokens that the target most often found the likeliest, ascending, int64 [count]; ties go to the smaller id."""
    often = torch.bincount(torch.cat([best for best, _ in says]), minlength=len(ends.head))
    return often.sort(descending=True, stable=True).indices[:count].sort().values


def trained(
    config: dict[str, Any], samples: Sequence[Sample], ends: Ends, args: argparse.Namespace
) -> tuple[Weights, list[float], list[float]]:
    """The head's tensors; the loss of every step; on samples that were held out, how often the likeliest token is the target's by depth.

    Raises:
        ValueError: there are not enough samples.
    """
    samples = [sample for sample in samples if length(sample) > args.depth + 1]
    products = partial(torch.autocast, "cpu", torch.bfloat16, enabled=args.dtype == "bfloat16")
    with torch.no_grad(), products():
        says = [said(sample, ends) for sample in samples]
    held, kept = range(0, len(samples), HELD_OUT), [i for i in range(len(samples)) if i % HELD_OUT]
    if len(kept) < args.batch:
        raise ValueError(f"a step takes {args.batch} samples, there are {len(kept)}")
    ids = vocabulary([says[i] for i in kept], ends, config["draft_vocab_size"])
    generator = torch.Generator().manual_seed(args.seed)
    weights = fresh(config, samples[0].states.shape[1] // config["hidden_size"], ends.head[ids], generator)
    head = TrainedHead(config)

    def taught(chosen: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        to = lesson([samples[i] for i in chosen], [says[i] for i in chosen], ids, ends)
        with products():
            yield from losses_of(head(weights, to.embedded, to.states, args.depth), to)

    for tensor in weights.values():
        tensor.requires_grad_()
    matrices = [tensor for tensor in weights.values() if tensor.dim() > 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.01},
            {"params": [tensor for tensor in weights.values() if tensor.dim() == 1], "weight_decay": 0.0},
        ],
        lr=args.rate,
        betas=(0.9, 0.95),
    )
    losses: list[float] = []
    chosen = batches([length(samples[i]) for i in kept], args.batch, args.seed)
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.rate * pace(step, args.steps)
        total, first, agreement = 0.0, math.nan, []
        for depth, (loss, agrees) in enumerate(taught([kept[i] for i in next(chosen)])):
            total = total + loss * DEPTH_WEIGHT**depth
            first = float(loss.detach()) if depth == 0 else first
            agreement.append(float(agrees))
        optimizer.zero_grad()
        total.backward()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
        optimizer.step()
        losses.append(first)
        if (step + 1) % 10 == 0:
            shares = " ".join(f"{share:.3f}" for share in agreement)
            print(f"step {step + 1}: loss {first:.3f}, agreement {shares}", file=sys.stderr, flush=True)
    agreement = torch.zeros(args.depth)
    with torch.no_grad():
        for i in held:
            agreement += torch.tensor([float(agrees) for _, agrees in taught([i])]) / len(held)
    offsets = {"d2t": ids - torch.arange(len(ids))}
    return {name: tensor.detach() for name, tensor in weights.items()} | offsets, losses, agreement.tolist()


def pace(step: int, steps: int) -> float:
    """Of the rate: up to 1 in a straight line, then down along a cosine."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def batches(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Without end, samples of about equal length together, in another order in each round."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(lengths)), len(lengths))
        found: list[list[int]] = []
        for start in range(0, len(order), size * WINDOW):
            window = sorted(order[start : start + size * WINDOW], key=lambda i: (lengths[i], i))
            found += [window[at : at + size] for at in range(0, len(window) - size + 1, size)]
        rng.shuffle(found)
        yield from found


def save(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    """The head, weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous() if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
