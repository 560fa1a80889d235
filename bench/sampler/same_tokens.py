"""Whether a GPU samples the same tokens as the CPU: lists every sample that differs, with the gap between the two
tokens.

Noise is the same to the bit. Sums and logarithms may be rounded differently, so two nearly equal scores may change
places. Logits are real: a model's, over a text. Each row has a case of its own, and is sampled at many positions.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from bench.lib.harness import table
from bench.lib.rows import real
from bench.sampler.gpu_cases import MIXED, SEEDED, Asked
from tailrace import kernels
from tailrace.kernels.constants import DRAW_STREAM
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots
from tailrace.sampling.reference import BadRowError, compute_distribution

GOAL = 1e-5
TIE = 1e-5  # scores nearer than that are the same up to float32's rounding
SHOWN = 20
FIRST_POSITION = 100
HISTORY = 60  # tokens before it, chosen from the likely ones
CASES: tuple[Asked, ...] = (*MIXED, SEEDED, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.95}, {})


def save(model: str | None, path: Path) -> None:
    """Save the model's logits, bf16, for a machine without the model."""
    logits = real_logits(model, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(logits, path)
    print(f"{tuple(logits.shape)} logits written to {path}")


def real_logits(model: str | None, path: Path | None) -> torch.Tensor:
    """bf16 [256, V], from a file that `save` wrote, or from the model."""
    if path is not None:
        return torch.load(path)
    return real(model, torch.bfloat16).rows[:256].clone()


def slots_for(logits: torch.Tensor) -> Slots:
    """One slot per row; the cases in turns."""
    rows, vocab = logits.shape
    slots = Slots(rows, vocab)
    likely = logits.float().topk(min(HISTORY, vocab), dim=-1).indices.tolist()
    for row in range(rows):
        params = SamplingParams(**CASES[row % len(CASES)])
        slots.add(
            row,
            params,
            key=row * 7919 + 1,
            handled_by_caller=("seed",),
            prompt=likely[row][::2],
            output=likely[row][1::2],
        )
    return slots


def check(logits: torch.Tensor, device: torch.device, draws: int) -> dict[str, Any]:
    """At least `draws` samples in bf16, and as many in float32."""
    found: dict[str, Any] = {"draws": 0, "differ": 0, "ties": 0, "goal": GOAL, "differences": []}
    for rows in (logits, logits.float()):
        slots = slots_for(logits)
        here, there, moved = Sampler(slots, "cpu"), Sampler(slots, "gpu"), rows.to(device)
        for step in range(-(-draws // rows.shape[0])):
            where = Rows.plain(range(len(rows)), range(len(rows)), [FIRST_POSITION + step] * len(rows))
            arriving = there.begin(moved, where)
            mine, theirs = here(rows, where).token_ids[:, 0], arriving.wait().token_ids[:, 0].cpu()
            found["draws"] += len(rows)
            for row in (mine != theirs).nonzero()[:, 0].tolist():
                found["differ"] += 1
                one = difference(rows, slots, row, FIRST_POSITION + step, int(mine[row]), int(theirs[row]))
                found["ties"] += abs(one["CPU's ahead by"]) < TIE
                found["differences"].append(one)
    return found


def difference(rows: torch.Tensor, slots: Slots, row: int, position: int, cpu: int, gpu: int) -> dict[str, Any]:
    """A difference in words and numbers."""
    ahead, survive = scores(rows[row].float(), slots, row, position, (cpu, gpu))
    return {
        "asks": ", ".join(f"{k} {v}" for k, v in CASES[row % len(CASES)].items()),
        "dtype": str(rows.dtype)[6:],
        "row": row,
        "position": position,
        "CPU": cpu,
        "GPU": gpu,
        "CPU's ahead by": ahead,
        "survive": survive,
    }


def scores(row: torch.Tensor, slots: Slots, slot: int, position: int, tokens: tuple[int, int]) -> tuple[float, str]:
    """The first token's lead over the second by the reference, nan if one is no candidate; and which are candidates."""
    entry = slots[slot]
    try:
        candidates = compute_distribution(row, entry, position)
    except BadRowError as error:
        return math.nan, str(error)
    noise = 0.0 if entry.params.greedy else kernels.gumbel(entry.key, position, candidates.ids, DRAW_STREAM).double()
    score = dict(zip(candidates.ids.tolist(), (candidates.logits.double() + noise).tolist(), strict=True))
    first, second = (score.get(token, math.nan) for token in tokens)
    return first - second, {
        (True, True): "both",
        (True, False): "the CPU's",
        (False, True): "the GPU's",
        (False, False): "none",
    }[tokens[0] in score, tokens[1] in score]


def shown(found: dict[str, Any]) -> str:
    """The result as text."""
    rate = found["differ"] / found["draws"]
    judged = "met" if rate <= found["goal"] else "MISSED"
    counts = f"{found['differ']} of {found['draws']:,} draws differ from the CPU's, "
    counts += f"{found['ties']} of them ties within {TIE:g}"
    head = f"same tokens: {counts} (goal 1 in {1 / GOAL:,.0f}: {judged})"
    return head if not found["differences"] else f"{head}\n{table(found['differences'][:SHOWN])}"
