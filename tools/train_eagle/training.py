"""The training of an EAGLE-3 head: batches of samples, the loss, the steps, and the files that are written."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from tools.train_eagle.corpus import Sample
from tools.train_eagle.head import Ends, TrainedHead, Weights, fresh

Said = tuple[torch.Tensor, torch.Tensor]  # see `said`
DEPTH_WEIGHT = 0.8  # weight of each further draft in the loss, as published
HELD_OUT = 20  # one of so many samples is held out
WINDOW = 16  # batches whose samples are sorted by length before they are cut, to avoid padding
WARM_UP = 0.05  # share of the steps
CLIP = 1.0  # limit of the gradient's norm


def listed(shares: Sequence[float]) -> str:
    """Return the shares as text."""
    return " ".join(f"{share:.3f}" for share in shares)


def length(sample: Sample) -> int:
    """Return the number of the sample's positions."""
    return len(sample.last)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A padded batch of samples.

    embedded: [B, T, H], states: [B, T, C·H], as TrainedHead takes them. wanted: [B, T, Vd], the target's probabilities
    of the head's tokens at the next position. likeliest: int64 [B, T], the head's id of the most likely token there, −1
    if the head lacks it. valid: bool [B, T].
    """

    embedded: torch.Tensor
    states: torch.Tensor
    wanted: torch.Tensor
    likeliest: torch.Tensor
    valid: torch.Tensor


def lesson(samples: Sequence[Sample], says: Sequence[Said], ids: torch.Tensor, ends: Ends) -> Lesson:
    """The samples as a batch. says: what `said` found for each sample."""
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
    """Per position the target's most likely token, int64 [n], and the log Σ exp of its logits, float32 [n]."""
    logits = F.linear(sample.last.float(), ends.head).float()
    return logits.argmax(-1), logits.logsumexp(-1)


def losses_of(logits: Iterator[torch.Tensor], to: Lesson) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Per depth the cross-entropy per position, and the share of positions where both most likely tokens agree."""
    for depth, found in enumerate(logits):
        valid = to.valid.clone()
        valid[:, :depth] = False  # no drafting begins before the text
        each = -(to.wanted * found.float().log_softmax(-1)).sum(-1)
        agrees = to.likeliest == found.argmax(-1)
        count = valid.sum().clamp_min(1)
        yield each[valid].sum() / count, agrees[valid].sum() / count


@torch.no_grad()
def vocabulary(says: Sequence[Said], ends: Ends, count: int) -> torch.Tensor:
    """The tokens that are most often the target's most likely one, ascending, int64 [count]; smaller ids win ties."""
    often = torch.bincount(torch.cat([best for best, _ in says]), minlength=len(ends.head))
    return often.sort(descending=True, stable=True).indices[:count].sort().values


def trained(
    config: dict[str, Any], samples: Sequence[Sample], ends: Ends, args: argparse.Namespace
) -> tuple[Weights, list[float], list[float]]:
    """The trained tensors; the loss of every step; by depth, how often held-out likeliest tokens agree.

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

    optimizer = optimizer_of(weights, args.rate)
    losses: list[float] = []
    chosen = batches([length(samples[i]) for i in kept], args.batch, args.seed)
    for step in range(args.steps):
        rate = args.rate * pace(step, args.steps)
        first, agreement = learn(optimizer, rate, weights, taught([kept[i] for i in next(chosen)]))
        losses.append(first)
        if (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {first:.3f}, agreement {listed(agreement)}", file=sys.stderr, flush=True)
    agreement = torch.zeros(args.depth)
    with torch.no_grad():
        for i in held:
            agreement += torch.tensor([float(agrees) for _, agrees in taught([i])]) / len(held)
    found = {name: tensor.detach() for name, tensor in weights.items()} | {"d2t": ids - torch.arange(len(ids))}
    return found, losses, agreement.tolist()


def learn(
    optimizer: torch.optim.Optimizer,
    rate: float,
    weights: Weights,
    depths: Iterator[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[float, list[float]]:
    """One step of training. depths: loss and agreement per depth. Returns the first depth's loss, all agreements."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    losses, agreement = zip(*depths, strict=True)
    total = sum(loss * DEPTH_WEIGHT**depth for depth, loss in enumerate(losses))
    optimizer.zero_grad()
    total.backward()  # type: ignore[union-attr]
    torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
    optimizer.step()
    return float(losses[0].detach()), [float(share) for share in agreement]


def optimizer_of(weights: Weights, rate: float) -> torch.optim.Optimizer:
    """AdamW over the tensors, which get gradients; only matrices decay."""
    for tensor in weights.values():
        tensor.requires_grad_()
    matrices = [tensor for tensor in weights.values() if tensor.dim() > 1]
    vectors = [tensor for tensor in weights.values() if tensor.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def pace(step: int, steps: int) -> float:
    """Factor of the learning rate: linear up to 1, then down along a cosine."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def batches(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of samples of similar length, in another order in each round."""
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
    """Write the head, with weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous() if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
