"""The two ends of a head: the embedding of tokens, and the output head. Each is the head's own or the target's. The
output head covers the head's own vocabulary or the target's.

Symbols: n rows, H the head's hidden size, V the target's vocabulary, Vd the head's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.layer import pack_projections
from tailrace.errors import ModelLoadError
from tailrace.runners.base import LayeredRunner


class OutputHead:
    """Normed states [n, H] → logits [n, V], −inf for tokens that the head does not know.

    Tensors: lm_head.weight [Vd, H], in some files. Without it, the target's is taken, or with `tie_word_embeddings` the
    file's own embedding. d2t [Vd], in some files: entry i plus i is the target's id of token i. Without it, Vd is V.

    Args:
        embedded: the file's own embedding [V, H], or None.
    """

    def __init__(
        self, checkpoint: Checkpoint, width: int, runner: LayeredRunner, embedded: torch.Tensor | None
    ) -> None:
        self.vocab_size, self.runner = runner.vocab_size, runner
        self.own = None
        self.token_ids = draft_vocabulary(checkpoint, runner.vocab_size)
        if "lm_head.weight" in checkpoint:
            self.own = pack_projections(
                checkpoint, width, ("lm_head", runner.vocab_size if self.token_ids is None else len(self.token_ids))
            )
        elif embedded is not None and checkpoint.value("tie_word_embeddings", "transformer_layer_config"):
            self.own = kernels.pack_linear(embedded if self.token_ids is None else embedded[self.token_ids], None)
        elif width != runner.hidden_size:
            raise ModelLoadError(
                f"{checkpoint.folder}: there is no tensor lm_head.weight, and hidden_size is not the target's "
                f"({width} and "
                f"{runner.hidden_size})"
            )

    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        logits = self.runner.head(normed) if self.own is None else kernels.linear(normed, self.own)
        if self.token_ids is None:
            return logits
        spread = logits.new_full((len(logits), self.vocab_size), float("-inf"))
        spread[:, self.token_ids] = logits[:, self.token_ids] if self.own is None else logits
        return spread


def draft_vocabulary(checkpoint: Checkpoint, vocab_size: int) -> torch.Tensor | None:
    """Return the target's id of each of the head's tokens, int64 [Vd]; None: they are the same."""
    if "d2t" not in checkpoint:
        return None
    rows = (checkpoint.read_shape("lm_head.weight") or checkpoint.read_shape("d2t") or (0,))[0]
    offsets = checkpoint.take_integers("d2t", rows)
    token_ids = torch.arange(len(offsets), device=offsets.device) + offsets
    if len(token_ids.unique()) < len(token_ids) or not bool(((token_ids >= 0) & (token_ids < vocab_size)).all()):
        raise ModelLoadError(f"{checkpoint.folder}: d2t must lead to different tokens in [0, {vocab_size - 1}]")
    return token_ids


def own_embedding(checkpoint: Checkpoint, width: int, runner: LayeredRunner) -> torch.Tensor | None:
    """Return the file's own embedding, [V, H]; None if it is absent or equals the target's.

    Raises:
        ModelLoadError: the file has no embedding, and the target's has another width.
    """
    own = checkpoint.take_optional("embed_tokens.weight", runner.vocab_size, width)
    if own is None and width != runner.hidden_size:
        raise ModelLoadError(
            f"{checkpoint.folder}: there is no tensor embed_tokens.weight, and hidden_size is not the target's "
            f"({width} and {runner.hidden_size})"
        )
    if own is None or (width == runner.hidden_size and torch.equal(own, runner.embed(torch.arange(runner.vocab_size)))):
        return None
    return own


def make_embedding(own: torch.Tensor | None, runner: LayeredRunner) -> Any:
    """Return a function that embeds token ids, int64 [n] → [n, H], by the file's own embedding or else the target's."""
    return runner.embed if own is None else lambda token_ids: F.embedding(token_ids.to(own.device), own)
