"""Mirostat 1 and 2 (Basu et al., arXiv 2007.14966; llama.cpp): keeps the surprise of the drawn tokens near τ bits.

Replaces the other truncations. μ starts at 2 τ. After a draw whose token has probability p among the kept tokens, μ −=
η · (−log2 p − τ). Neutral: 0.

Version 2 keeps the tokens with −log2 p ≤ μ. If no token qualifies, only the likeliest stays, of equal ones the smallest
id.

Version 1 estimates the Zipf exponent from the 100 likeliest tokens:

    ŝ = Σ tᵢ bᵢ / Σ tᵢ², tᵢ = ln((i + 2) / (i + 1)), bᵢ = ln(pᵢ / pᵢ₊₁)

It keeps the k likeliest tokens with k = (ε 2^μ / (1 − V^−ε))^(1 / ŝ), ε = ŝ − 1, at least one. As in llama.cpp, k is
truncated. (The authors' own script rounds and adds one.)
"""

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
    if logits.numel() < 2:  # no choice is left, but μ still learns from it
        return learning(candidates, context)
    i = torch.arange(logits.numel() - 1, dtype=torch.float64)
    t, b = (
        torch.log((i + 2) / (i + 1)),
        logits[:-1] - logits[1:],
    )  # ln(pᵢ / pᵢ₊₁) without underflow
    s = float((t * b).sum() / (t * t).sum())
    k = min(zipf_k(s, mu, context.slot.vocab_size), candidates.ids.numel())
    return learning(candidates.first(candidates.likeliest(k), k), context)


def learning(kept: Candidates, context: Context) -> Candidates:
    """Store the kept candidates: μ learns from the probability among them, whatever methods run later."""
    context.slot.basis = kept
    return kept


def zipf_k(s: float, mu: float, vocab_size: int) -> int:
    """Return how many tokens a Zipf law of exponent s keeps at surprise mu. If the formula has no finite value, return
    all."""
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
