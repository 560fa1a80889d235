"""Corrections of a block's logits by the token before each place: what DSpark and DFlash2 add to DFlash.

One pass of a block knows none of its tokens, so neighbouring drafts may not go together. A correction is small enough
to run again for each draft, once the draft before it is known.

Symbols: n rows, H hidden size, V the target's vocabulary, Vd the head's, r the rank of a correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn import functional as F

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.layer import pack_projections
from tailrace.errors import ModelLoadError
from tailrace.runners.base import LayeredRunner

KEYS = frozenset(
    (
        "markov_rank",
        "markov_head_type",
        "enable_confidence_head",
        "confidence_head_with_markov",
        "num_anchors",  # of training, as is the next one
        "confidence_head_alpha",
        "selector_rank",
        "selector_top_k",
    )
)
MAX_RANK = 2**16
GRAIN = 2**14  # numbers in one call of an elementwise function; torch gives more than twice as many to several threads
LANES = 64  # a multiple of the numbers that a processor computes at once


class Correction(Protocol):
    """The interface of corrections."""

    def start(self, normed: torch.Tensor) -> torch.Tensor:
        """Return the states [n, …] before the first draft of each of n blocks. normed: any rows [n, H]."""
        ...

    def apply(
        self, logits: torch.Tensor, normed: torch.Tensor, previous: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of one place of each block, and the next states.

        Args:
            logits, normed: of the places, [n, V], and the output head's input [n, H].
            previous: the tokens before them, int64 [n].
        """
        ...


class MarkovHead:
    """DSpark's correction: a bias of low rank for each previous token.

    Tensors: markov_head.markov_w1.weight [V, r] and markov_w2.weight [Vd, r]. Kind "gated" has gate_proj [r, H + r],
    and "rnn" has joint_proj [3r, 2r + H], both with biases.

    Args:
        token_ids: the target's id of each of the head's tokens, or None; see drafting/ends.py.
    """

    def __init__(
        self, checkpoint: Checkpoint, kind: str, rank: int, runner: LayeredRunner, token_ids: torch.Tensor | None
    ) -> None:
        width, prefix, self.token_ids = runner.hidden_size, "markov_head.", token_ids
        self.rank, self.kind = rank, kind
        rows = runner.vocab_size if token_ids is None else len(token_ids)
        self.table = checkpoint.take(f"{prefix}markov_w1.weight", runner.vocab_size, rank)
        self.bias = pack_projections(checkpoint, rank, (f"{prefix}markov_w2", rows))
        if kind == "gated":
            self.mix = pack_projections(checkpoint, width + rank, (f"{prefix}gate_proj", rank))
        elif kind == "rnn":
            self.mix = pack_projections(checkpoint, 2 * rank + width, (f"{prefix}joint_proj", 3 * rank))
        self.find_latent = {"vanilla": self._embed, "gated": self._gate, "rnn": self._recur}[kind]

    def embed(self, previous: torch.Tensor) -> torch.Tensor:
        """Return the rows of the previous tokens, [n, r]."""
        return F.embedding(previous.to(self.table.device), self.table)

    def start(self, normed: torch.Tensor) -> torch.Tensor:
        return normed.new_zeros(len(normed), self.rank)

    def apply(
        self, logits: torch.Tensor, normed: torch.Tensor, previous: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        latent, states = self.find_latent(self.embed(previous), normed, states)
        bias = kernels.linear(latent, self.bias).to(logits.dtype)
        if self.token_ids is None:
            return logits + bias, states
        logits = logits.clone()
        logits[:, self.token_ids] += bias
        return logits, states

    def _embed(
        self, rows: torch.Tensor, normed: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return rows, states

    def _gate(
        self, rows: torch.Tensor, normed: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gate = map_rows(torch.sigmoid, kernels.linear(torch.cat([normed, rows], 1), self.mix))
        return gate * rows, states

    def _recur(
        self, rows: torch.Tensor, normed: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = kernels.linear(torch.cat([states, rows, normed], 1), self.mix)
        gate, candidate, out = mixed.split(self.rank, 1)
        gate = map_rows(torch.sigmoid, gate)
        states = gate * states + (1.0 - gate) * map_rows(torch.tanh, candidate)
        return map_rows(torch.tanh, out), states


class ConfidenceHead:
    """DSpark's estimate of the probability that a draft is accepted after the ones before it.

    Tensors: confidence_head.proj.weight [1, H + r], or [1, H] without `confidence_head_with_markov`; proj.bias.

    Args:
        markov: the correction whose rows of the previous tokens are part of the input, or None.
    """

    def __init__(self, checkpoint: Checkpoint, width: int, markov: MarkovHead | None) -> None:
        self.markov = markov
        width += 0 if markov is None else markov.rank
        self.projection = pack_projections(checkpoint, width, ("confidence_head.proj", 1))

    def __call__(self, normed: torch.Tensor, previous: torch.Tensor) -> list[float]:
        """Return the probabilities for one place of each block; see `Correction.apply`."""
        if self.markov is not None:
            normed = torch.cat([normed, self.markov.embed(previous).to(normed.dtype)], 1)
        odds = kernels.linear(normed, self.projection)[:, 0].tolist()
        return [0.5 + 0.5 * math.tanh(0.5 * each) for each in odds]


class CandidateSelector:
    """DFlash2's correction: of the likeliest tokens of each place alone, those that go with the previous token.

    All other tokens get −inf. Tensors: candidate_selector.predecessor_codebook and successor_codebook [V, r],
    hidden_projection.weight [r, H].
    """

    def __init__(self, checkpoint: Checkpoint, rank: int, top_k: int, runner: LayeredRunner) -> None:
        prefix, self.top_k = "candidate_selector.", top_k
        self.before = checkpoint.take(f"{prefix}predecessor_codebook", runner.vocab_size, rank)
        self.after = checkpoint.take(f"{prefix}successor_codebook", runner.vocab_size, rank)
        self.projection = pack_projections(checkpoint, runner.hidden_size, (f"{prefix}hidden_projection", rank))

    def start(self, normed: torch.Tensor) -> torch.Tensor:
        return normed.new_zeros(len(normed), 0)

    def apply(
        self, logits: torch.Tensor, normed: torch.Tensor, previous: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, token_ids = logits.float().topk(self.top_k, 1)
        wanted = F.embedding(previous.to(self.before.device), self.before) * kernels.linear(normed, self.projection)
        pairs = (wanted.float()[:, None] * F.embedding(token_ids, self.after).float()).sum(-1)
        spread = torch.full_like(logits, float("-inf"), dtype=torch.float32)
        return spread.scatter(1, token_ids, values + pairs), states


def load_correction(
    checkpoint: Checkpoint, section: str, runner: LayeredRunner, token_ids: torch.Tensor | None
) -> tuple[Correction | None, ConfidenceHead | None]:
    """Load the correction and the estimate of confidence that the configuration names, if any.

    Raises:
        ModelLoadError: a number or a tensor is missing or out of range, or the file has both kinds of correction.
    """
    folder = checkpoint.folder
    markov = selector = None
    if checkpoint.value("markov_rank", section):
        kind = checkpoint.value("markov_head_type", section) or "vanilla"
        if kind not in ("vanilla", "gated", "rnn"):
            raise ModelLoadError(f"{folder}: markov_head_type must be vanilla, gated or rnn, got {kind!r}")
        rank = checkpoint.number("markov_rank", section, 1, MAX_RANK)
        markov = MarkovHead(checkpoint, kind, rank, runner, token_ids)
    if any(checkpoint.value(name, section) for name in ("selector_rank", "selector_top_k")):
        rank = checkpoint.number("selector_rank", section, 1, MAX_RANK)
        selector = CandidateSelector(
            checkpoint, rank, checkpoint.number("selector_top_k", section, 1, runner.vocab_size), runner
        )
    if markov is not None and selector is not None:
        raise ModelLoadError(f"{folder}: markov_rank and selector_rank must not both be set")
    confidence = None
    if checkpoint.flag("enable_confidence_head", section, "confidence_head.proj.weight" in checkpoint):
        with_markov = checkpoint.flag("confidence_head_with_markov", section, markov is not None)
        if with_markov and markov is None:
            raise ModelLoadError(f"{folder}: confidence_head_with_markov must be false without markov_rank")
        confidence = ConfidenceHead(checkpoint, runner.hidden_size, markov if with_markov else None)
    return markov or selector, confidence


def is_dspark(checkpoint: Checkpoint, section: str) -> bool:
    """Return whether the folder is DSpark's, by its architecture, its type or its Markov head."""
    names: Sequence[object] = checkpoint.config.get("architectures") or ()
    named = any("DSpark" in str(name) for name in names)
    kinds = (checkpoint.config.get("speculators_model_type"), checkpoint.value("projector_type", section))
    return named or "dspark" in kinds or checkpoint.value("markov_rank", section) is not None


def map_rows(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise function to [n, r]. A row's result does not depend on the other rows.

    torch computes the end of an array, and of each thread's part, by another function. So rows are padded to whole
    vectors, and a call has too few numbers for a second thread.
    """
    width = -(-x.shape[1] // LANES) * LANES
    parts = F.pad(x, (0, width - x.shape[1])).split(max(1, GRAIN // width))
    return torch.cat([function(part) for part in parts])[:, : x.shape[1]]
