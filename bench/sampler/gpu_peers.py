"""What the sampler on a GPU is compared with: one read of the logits, a copy of them, and other projects.

A peer that is not installed or fails is left out, and the output says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
import triton
import triton.language as tl

from bench.lib.gpu_timing import Run
from bench.sampler.gpu_cases import JOINT
from bench.sampler.torch_samplers import sorted_top_k_top_p
from tailrace.kernels.gpu.argmax import argmax

WARPS = 8
BLOCKS = (8192, 2048, 1024)  # entries that a program reads: the largest number with which all multiprocessors are busy
PROGRAMS = 528  # four for each multiprocessor of an H200

K, P, TEMPERATURE = JOINT["top_k"], JOINT["top_p"], JOINT["temperature"]
Sampling = Callable[[torch.Tensor], object]


@triton.jit
def largest(data, n, out, BLOCK: tl.constexpr):  # noqa: N803, Triton's custom
    part = tl.program_id(0).to(tl.int64)
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(data + at, mask=at < n, other=float("-inf"))
    tl.store(out + part, tl.max(x.to(tl.float32), 0))


def one_read(logits: torch.Tensor) -> Run:
    """Read each entry once, and find the largest of each block. No sampler can be faster."""
    n = logits.numel()
    block = next((b for b in BLOCKS if n >= b * PROGRAMS), BLOCKS[-1])
    out = torch.empty(triton.cdiv(n, block), device=logits.device)
    return lambda: largest[(out.numel(),)](logits, n, out, block, num_warps=WARPS)


def copy(logits: torch.Tensor) -> Run:
    """Read and write the same bytes."""
    target = torch.empty_like(logits)
    return lambda: target.copy_(logits)


def always(logits: torch.Tensor) -> dict[str, Run]:
    """What torch itself has."""
    return {
        "one read": one_read(logits),
        "copy": copy(logits),
        "argmax, torch": lambda: logits.argmax(-1),
        "argmax, ours": lambda: argmax(logits),
        "sort, torch": lambda: sorted_top_k_top_p(logits, K, P, TEMPERATURE),
    }


# ---- FlashInfer


def flashinfer_from_logits(flashinfer: Any, noise: dict[str, Any], logits: torch.Tensor) -> object:
    x = logits.float() / TEMPERATURE
    return flashinfer.sampling.top_k_top_p_sampling_from_logits(x, *knobs(logits), filter_apply_order="joint", **noise)


def flashinfer_as_vllm(flashinfer: Any, noise: dict[str, Any], logits: torch.Tensor) -> object:
    """As vLLM calls it: first top-k, then top-p of the rest."""
    x = logits.float() / TEMPERATURE
    return flashinfer.sampling.top_k_top_p_sampling_from_logits(x, *knobs(logits), deterministic=True, **noise)


def flashinfer_from_probs(flashinfer: Any, noise: dict[str, Any], logits: torch.Tensor) -> object:
    probs = flashinfer.sampling.softmax(logits.float(), temperature=TEMPERATURE)
    return flashinfer.sampling.top_k_top_p_sampling_from_probs(
        probs, *knobs(logits), filter_apply_order="joint", **noise
    )


# ---- vLLM


def vllm(module: Any, _: dict[str, Any], logits: torch.Tensor) -> object:
    """vLLM's kernel masks in place; the sample is an exponential race."""
    x = logits.to(torch.float32, copy=True).div_(TEMPERATURE)
    # the last argument as its GPU runner finds it from the requests: no row has top-p alone
    probs = module.apply_top_k_top_p_triton(x, *knobs(logits), has_topp_only_rows=False).softmax(-1)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)


# ---- both

MADE: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}


def knobs(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and p of each row, as servers pass them; made once."""
    key = logits.shape[0], logits.device
    if key not in MADE:
        k = torch.full((key[0],), K, dtype=torch.int32, device=key[1])
        MADE[key] = k, torch.full((key[0],), P, device=key[1])
    return MADE[key]


def noises(device: torch.device) -> list[dict[str, Any]]:
    """The kinds of noise a peer may take, best first: only what is on the device can be part of a graph."""
    there = {name: torch.zeros(1, dtype=torch.int64, device=device) for name in ("seed", "offset")}
    return [there, {"seed": 1, "offset": 0}, {}]


# name → module, and how it samples
PEERS: dict[str, tuple[str, Callable[[Any, dict[str, Any], torch.Tensor], object]]] = {
    "FlashInfer, joint, logits": ("flashinfer", flashinfer_from_logits),
    "FlashInfer, joint, probs": ("flashinfer", flashinfer_from_probs),
    "FlashInfer, as vLLM": ("flashinfer", flashinfer_as_vllm),
    "vLLM, Triton": ("vllm.v1.sample.ops.topk_topp_triton", vllm),
}


def installed(device: torch.device) -> dict[str, Sampling]:
    """The peers that work here; a line says why others don't."""
    found: dict[str, Sampling] = {}
    trial = torch.randn(2, 4096, device=device)
    for name, (where, sample) in PEERS.items():
        try:
            module = import_module(where)
            found[name] = working(partial(sample, module), trial)
        except Exception as error:  # any error of a library that was not made for this machine
            print(
                f"left out: {name}: {type(error).__name__}: {str(error).splitlines()[:1]}", file=sys.stderr, flush=True
            )
    return found


def working(sample: Callable[[dict[str, Any], torch.Tensor], object], trial: torch.Tensor) -> Sampling:
    """Sample with the first kind of noise that the peer takes.

    Raises:
        Exception: it works with none.
    """
    error: Exception | None = None
    for noise in noises(trial.device):
        try:
            sample(noise, trial)
            return partial(sample, noise)
        except Exception as raised:
            error = raised
    assert error is not None
    raise error


def peers(samplings: dict[str, Sampling], logits: torch.Tensor) -> dict[str, Run]:
    """A run of the peer on these rows."""
    return {name: partial(sampling, logits) for name, sampling in samplings.items()}
