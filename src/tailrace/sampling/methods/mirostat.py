"""Mirostat 1 and 2 (Basu et al., arXiv 2007.14966; llama.cpp): the surprise of what is drawn is held near τ bits.
Replaces the other truncations. μ starts at 2 τ; after a draw with probability p among the kept, μ −= η · (−log2 p − τ).
Neutral: 0.

2: keep −log2 p ≤ μ; where no token has so little surprise the likeliest alone, of equal ones the smallest id. 1: from
the 100 likeliest the Zipf exponent ŝ = Σ tᵢ bᵢ / Σ tᵢ², tᵢ = ln((i + 2) / (i + 1)), bᵢ = ln(pᵢ / pᵢ₊₁); then the k
likeliest with k = (ε 2^μ / (1 − V^−ε))^(1 / ŝ), ε = ŝ − 1, at least one. k is truncated, as llama.cpp does it (the
authors' own script rounds and adds one)."""

from __future__ import annotations

import math

import torch

from tailrace.kernels.constants import TOLERANCE
from tailrace.kernels.program import Stage
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement, Slot

CANDIDATES = 100


def apply(candidates: Candidates, context: Context) -> Candidates:
    mu = context.slot.state["mirostat_mu"]
    if context.slot.params.mirostat == 2:
        depth = candidates.log_mass() - mu * math.log(2.0)
        kept = candidates.near(depth)
        return learning(kept if depth <= TOLERANCE else kept.first(kept.likeliest(1), 1), context)
    logits = candidates.logits[candidates.likeliest(CANDIDATES)].double()
    if logits.numel() < 2:  # nothing is left to choose, and its surprise is learnt from all the same
        return learning(candidates, context)
    i = torch.arange(logits.numel() - 1, dtype=torch.float64)
    t, b = (
        torch.log((i + 2) / (i + 1)),
        logits[:-1] - logits[1:],
    )  # ln(pᵢ / pᵢ₊₁), without a probability that underflows
    s = float((t * b).sum() / (t * t).sum())
    k = min(zipf_k(s, mu, context.slot.vocab_size), candidates.ids.numel())
    return learning(candidates.first(candidates.likeliest(k), k), context)


def learning(kept: Candidates, context: Context) -> Candidates:
    """What is learnt from is the probability among the kept, whatever comes after."""
    context.slot.basis = kept
    return kept


def zipf_k(s: float, mu: float, vocab_size: int) -> int:
    """How many tokens a Zipf law of exponent s keeps at surprise mu; everything where the formula has no finite
    value."""
    epsilon = s - 1.0
    if s <= 0.0:
        return vocab_size
    # ε → 0: (1 − V^−ε) / ε → ln V
    share = -math.expm1(-epsilon * math.log(vocab_size)) / epsilon if abs(epsilon) > 1e-12 else math.log(vocab_size)
    log_k = (mu * math.log(2.0) - math.log(share)) / s
    return vocab_size if log_k >= math.log(vocab_size) else max(1, int(math.exp(log_k)))


def learn(slot: Slot, logprob: float) -> None:
    params = slot.params
    slot.state["mirostat_mu"] -= params.mirostat_eta * (-logprob / math.log(2.0) - params.mirostat_tau)


def stage(params: SamplingParams) -> Stage:
    return Stage("mirostat" if params.mirostat == 2 else "mirostat_1", a=params.mirostat_tau, b=params.mirostat_eta)


METHOD = Refinement(apply, stage, begin=lambda params: {"mirostat_mu": 2.0 * params.mirostat_tau}, learn=learn)
